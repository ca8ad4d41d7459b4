// JSON from files that may hold anything: a strict parser and typed reading of members.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tilewise::casefile {

/// What is wrong with a file's contents: "<part> must be <expected>, got <what came>".
class BadContents : public std::runtime_error {
 public:
  BadContents(std::string_view part, std::string_view expected, std::string_view got);
};

/// A value as it may stand in a message: one short line of ASCII.
std::string shown(const nlohmann::json& value);

/// Throws BadContents for anything but JSON whose objects name each member once and that nests a few levels
/// deep; `part` is its name in messages, here and below.
nlohmann::json parse_json(std::string_view text, const std::string& part);

void must_be_object(const nlohmann::json& value, const std::string& part);
void must_be_list(const nlohmann::json& value, const std::string& part);
/// A member that must be there.
const nlohmann::json& member(const nlohmann::json& object, const std::string& part, const char* name);

std::string text_of(const nlohmann::json& value, const std::string& part);
/// A whole number in [least, most].
int64_t whole_of(const nlohmann::json& value, const std::string& part, int64_t least, int64_t most);
/// A list of whole numbers of at least `least`.
std::vector<int64_t> wholes_of(const nlohmann::json& value, const std::string& part, int64_t least);

}  // namespace tilewise::casefile
