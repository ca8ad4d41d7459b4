// Strict reading of JSON.
#include "casefile/json.h"

#include <fmt/format.h>

#include <set>

namespace tilewise::casefile {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 4;
constexpr size_t kMaxShown = 60;  // characters

// Refuses during parsing what the finished value would no longer show (names that come twice), or what should
// not be built up at all.
class Watch {
 public:
  explicit Watch(const std::string& part) : part_(part) {}

  bool operator()(int depth, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start || event == json::parse_event_t::array_start) {
      if (depth >= kMaxDepth) {
        throw BadContents(part_, fmt::format("JSON of at most {} levels", kMaxDepth), "more of them");
      }
      names_.emplace_back();
    } else if (event == json::parse_event_t::object_end || event == json::parse_event_t::array_end) {
      names_.pop_back();
    } else if (event == json::parse_event_t::key) {
      if (!names_.back().insert(value.get<std::string>()).second) {
        throw BadContents(part_, "JSON that has each name once", shown(value) + " twice");
      }
    }
    return true;
  }

 private:
  const std::string& part_;
  std::vector<std::set<std::string>> names_;
};

}  // namespace

BadContents::BadContents(std::string_view part, std::string_view expected, std::string_view got)
    : std::runtime_error(fmt::format("{} must be {}, got {}", part, expected, got)) {}

std::string shown(const json& value) {
  std::string text = value.dump(-1, ' ', true);
  if (text.size() > kMaxShown) text.replace(kMaxShown, std::string::npos, "...");
  return text;
}

json parse_json(std::string_view text, const std::string& part) {
  try {
    Watch watch(part);
    return json::parse(text,
                       [&](int depth, json::parse_event_t event, json& v) { return watch(depth, event, v); });
  } catch (const json::parse_error& error) {
    throw BadContents(part, "JSON", fmt::format("a mistake at byte {}", error.byte));
  } catch (const json::out_of_range&) {
    throw BadContents(part, "JSON", "a number out of range");
  }
}

void must_be_object(const json& value, const std::string& part) {
  if (!value.is_object()) throw BadContents(part, "a JSON object", shown(value));
}

void must_be_list(const json& value, const std::string& part) {
  if (!value.is_array()) throw BadContents(part, "a JSON list", shown(value));
}

const json& member(const json& object, const std::string& part, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) throw BadContents(fmt::format("{}: {}", part, name), "given", "nothing");
  return *found;
}

std::string text_of(const json& value, const std::string& part) {
  if (!value.is_string()) throw BadContents(part, "a string", shown(value));
  return value.get<std::string>();
}

int64_t whole_of(const json& value, const std::string& part, int64_t least, int64_t most) {
  const bool fits =
      value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX);
  if (fits) {
    const auto number = value.get<int64_t>();
    if (number >= least && number <= most) return number;
  }
  const std::string range = least == INT64_MIN && most == INT64_MAX ? "of 64 bits"
                            : most == INT64_MAX                     ? fmt::format("of at least {}", least)
                                                                    : fmt::format("in {} to {}", least, most);
  throw BadContents(part, "a whole number " + range, shown(value));
}

std::vector<int64_t> wholes_of(const json& value, const std::string& part, int64_t least) {
  must_be_list(value, part);
  std::vector<int64_t> numbers;
  for (const json& entry : value) numbers.push_back(whole_of(entry, part, least, INT64_MAX));
  return numbers;
}

}  // namespace tilewise::casefile
