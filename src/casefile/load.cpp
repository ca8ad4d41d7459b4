// From a case file to an argument struct and the memory that it views.
#include "casefile/load.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <system_error>
#include <utility>

#include "casefile/fields.h"
#include "casefile/json.h"
#include "casefile/layout.h"
#include "casefile/runs.h"
#include "casefile/safetensors.h"
#include "core/check.h"
#include "core/footprint.h"

namespace tilewise {

/// Address space: zeros that cost nothing until they are touched, or nothing that may be touched at all.
struct LoadedCase::Memory {
  Memory(int64_t wanted, bool with_data) : bytes(static_cast<size_t>(wanted)) {
    if (bytes == 0) return;
    const int protection = with_data ? PROT_READ | PROT_WRITE : PROT_NONE;
    void* mapped = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
      throw casefile::BadContents(std::string(casefile::kMemoryKey), "no more than this machine can give",
                                  fmt::format("{} bytes", wanted));
    }
    start = static_cast<uint8_t*>(mapped);
  }
  ~Memory() {
    if (start != nullptr) munmap(start, bytes);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  size_t bytes;
  uint8_t* start = nullptr;
};

namespace casefile {
namespace {

using nlohmann::json;

// A case may have gaps between its elements, and outputs that are not stored; but a small file must not ask
// for much.
constexpr int64_t kMemoryPerFileByte = 64;
constexpr int64_t kMemoryAnyway = int64_t{256} << 20;
// Of the address space that calls without data may spread over.
constexpr int64_t kMaxAddresses = int64_t{1} << 46;

void read(const json& value, const std::string& part, int64_t& to) {
  to = whole_of(value, part, INT64_MIN, INT64_MAX);
}
void read(const json& value, const std::string& part, bool& to) {
  if (!value.is_boolean()) throw BadContents(part, "true or false", shown(value));
  to = value.get<bool>();
}
void read(const json& value, const std::string& part, float& to) {
  using Limits = std::numeric_limits<float>;
  if (value.is_number() && std::abs(value.get<double>()) <= double{Limits::max()}) {
    to = value.get<float>();
  } else if (value == "inf" || value == "-inf") {
    to = value == "inf" ? Limits::infinity() : -Limits::infinity();
  } else if (value == "nan") {
    to = Limits::quiet_NaN();
  } else {
    throw BadContents(part, R"(a number of 32 bits, "inf", "-inf" or "nan")", shown(value));
  }
}
void read(const json& value, const std::string& part, std::optional<float>& to) {
  to.reset();
  if (!value.is_null()) read(value, part, to.emplace());
}
void read(const json& value, const std::string& part, Window& to) {
  const std::vector<int64_t> sides = wholes_of(value, part, INT64_MIN);
  if (sides.size() != 2) throw BadContents(part, "a pair", shown(value));
  to = {sides[0], sides[1]};
}
void read(const json& value, const std::string& part, Record& to) {
  if (value.is_number()) {
    to = static_cast<Record>(whole_of(value, part, INT32_MIN, INT32_MAX));
    return;
  }
  const auto record = value == "auto"     ? Record::kAuto
                      : value.is_string() ? record_from_name(value.get<std::string>())
                                          : std::nullopt;
  if (!record) throw BadContents(part, "auto, a record's name or id", shown(value));
  to = *record;
}

DType read_type(const json& value, const std::string& part) {
  const std::string name = text_of(value, part);
  for (const DType type : kAllTypes) {
    if (name == to_string(type)) return type;
  }
  throw BadContents(part, "an element type", shown(value));
}

struct Piece {
  int64_t bytes = 0;
  int64_t start = 0;  // in the memory of the whole call
};

std::vector<Piece> read_pieces(const json& list, int64_t most, bool with_data, int64_t* total) {
  std::vector<Piece> pieces;
  int64_t at = 0;
  for (const json& entry : list) {
    const std::string part = fmt::format("{} {}", kMemoryKey, pieces.size());
    must_be_object(entry, part);
    const int64_t past = whole_of(member(entry, part, "past"), part + ": past", 0, kAddressUnit - 1);
    const int64_t bytes = whole_of(member(entry, part, "bytes"), part + ": bytes", 1, INT64_MAX);
    if (bytes > most - at) {
      throw BadContents(
          kMemoryKey,
          fmt::format("of at most {} bytes in all{}", most, with_data ? " for a file of this size" : ""),
          shown(list));
    }
    pieces.push_back({bytes, at + past});
    at = (at + past + bytes + kAddressUnit - 1) / kAddressUnit * kAddressUnit;
  }
  *total = at;
  return pieces;
}

/// Fills an argument struct from the parts of a file.
class Reader {
 public:
  Reader(const SafeTensors& file, int64_t file_bytes);

  const char* op() const { return op_.c_str(); }
  bool with_data() const { return with_data_; }
  std::shared_ptr<const LoadedCase::Memory> memory() const { return memory_; }

  void tensor(const char* name, TensorView& to, Access access);
  template <class T>
  void option(const char* name, T& to) {
    const std::string part = fmt::format("option {}", name);
    const auto found = options_.find(name);
    if (found == options_.end()) throw BadContents(part, "given", "nothing");
    read(*found, part, to);
    options_.erase(found);
  }
  /// Fills the memory; refuses what the operator does not know.
  void finish();

 private:
  const std::string& text(const char* key) const;
  TensorView read_view(const json& entry, const std::string& part) const;

  const SafeTensors& file_;
  std::string op_;
  bool with_data_ = true;
  json options_;
  json tensors_;
  int64_t most_ = 0;  // bytes of memory
  int64_t touched_ = 0;
  std::vector<Piece> pieces_;
  std::shared_ptr<const LoadedCase::Memory> memory_;
  std::vector<std::pair<std::string, TensorView>> inputs_;
  std::vector<TensorView> outputs_;
};

Reader::Reader(const SafeTensors& file, int64_t file_bytes) : file_(file) {
  if (text(kVersionKey) != kVersion)
    throw BadContents(kVersionKey, shown(kVersion), shown(text(kVersionKey)));
  op_ = text(kOperatorKey);
  const std::string& data = text(kDataKey);
  with_data_ = data == kDataSaved;
  if (!with_data_ && data != kDataLeftOut) {
    throw BadContents(kDataKey, fmt::format("{} or {}", shown(kDataSaved), shown(kDataLeftOut)), shown(data));
  }
  options_ = parse_json(text(kOptionsKey), kOptionsKey);
  must_be_object(options_, kOptionsKey);
  tensors_ = parse_json(text(kTensorsKey), kTensorsKey);
  must_be_object(tensors_, kTensorsKey);
  const json memory = parse_json(text(kMemoryKey), kMemoryKey);
  must_be_list(memory, kMemoryKey);
  most_ = with_data_ ? kMemoryAnyway + kMemoryPerFileByte * file_bytes : kMaxAddresses;
  int64_t total = 0;
  pieces_ = read_pieces(memory, most_, with_data_, &total);
  memory_ = std::make_shared<LoadedCase::Memory>(total, with_data_);
}

const std::string& Reader::text(const char* key) const {
  const auto found = file_.metadata.find(key);
  if (found == file_.metadata.end())
    throw BadContents(fmt::format("__metadata__: {}", key), "given", "nothing");
  return found->second;
}

TensorView Reader::read_view(const json& entry, const std::string& part) const {
  must_be_object(entry, part);
  const DType type = read_type(member(entry, part, "dtype"), part + ": dtype");
  const std::vector<int64_t> shape = wholes_of(member(entry, part, "shape"), part + ": shape", 0);
  const std::vector<int64_t> strides =
      wholes_of(member(entry, part, "strides"), part + ": strides", INT64_MIN);
  const auto view_at = [&](const void* data) {
    try {
      return TensorView(data, type, shape, strides);
    } catch (const InvalidArgument& error) {
      throw BadContents(part, "a view that can be", error.what());
    }
  };
  const TensorView view = view_at(nullptr);
  const json& where = member(entry, part, "memory");
  if (where.is_null()) return view;
  const auto count = static_cast<int64_t>(pieces_.size());
  const int64_t number = whole_of(where, part + ": memory", 0, INT64_MAX);
  if (number >= count) throw BadContents(part + ": memory", fmt::format("one of {}", count), shown(where));
  const Piece& piece = pieces_[static_cast<size_t>(number)];
  const int64_t at = whole_of(member(entry, part, "at"), part + ": at", 0, piece.bytes);
  const Footprint place = footprint(view);  // relative to `at`
  if (at + place.first < 0 || place.extent() > piece.bytes - (at + place.first)) {
    throw BadContents(part, fmt::format("inside its {} bytes of memory", piece.bytes),
                      fmt::format("{} bytes from byte {} on", place.extent(), at + place.first));
  }
  return view_at(memory_->start + piece.start + at);
}

void Reader::tensor(const char* name, TensorView& to, Access access) {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) return;
  to = read_view(*found, fmt::format("tensor {}", name));
  tensors_.erase(found);
  if (to.data() == nullptr || !with_data_) return;
  // A view may claim more elements than it has bytes.
  const int64_t bytes = to.numel() * size_of(to.dtype());
  if (bytes > most_ - touched_) {
    throw BadContents(kTensorsKey, fmt::format("of at most {} bytes in all for a file of this size", most_),
                      fmt::format("{} more for {}", bytes, name));
  }
  touched_ += bytes;
  if (access == Access::kWritten) {
    outputs_.push_back(to);
  } else {
    inputs_.emplace_back(name, to);
  }
}

void Reader::finish() {
  if (!options_.empty()) {
    throw BadContents(kOptionsKey, fmt::format("those of {}", op_), shown(options_.begin().key()));
  }
  if (!tensors_.empty()) {
    throw BadContents(kTensorsKey, fmt::format("those of {}", op_), shown(tensors_.begin().key()));
  }
  for (const TensorView& view : outputs_) {
    for_each_run(view,
                 [](uint8_t* run, int64_t bytes) { std::memset(run, 0xFF, static_cast<size_t>(bytes)); });
  }
  // Inputs last: an output may lie in the same memory.
  for (const auto& [name, view] : inputs_) {
    const auto found = file_.tensors.find(name);
    if (found == file_.tensors.end()) throw BadContents(fmt::format("tensor {}", name), "stored", "nothing");
    const StoredTensor& stored = found->second;
    const std::vector<int64_t> shape(view.shape().begin(), view.shape().end());
    if (stored.dtype != stored_type(view.dtype()) || stored.shape != shape) {
      throw BadContents(fmt::format("tensor {}", name),
                        fmt::format("stored as {} {}", stored_type(view.dtype()), shown(shape)),
                        fmt::format("{} {}", stored.dtype, shown(stored.shape)));
    }
    const uint8_t* from = file_.data.data() + stored.begin;
    for_each_run(view, [&](uint8_t* run, int64_t bytes) {
      std::memcpy(run, from, static_cast<size_t>(bytes));
      from += bytes;
    });
  }
  if (file_.tensors.size() != inputs_.size()) {
    for (const auto& [name, stored] : file_.tensors) {
      const auto is_input = [&](const auto& input) { return input.first == name; };
      if (std::any_of(inputs_.begin(), inputs_.end(), is_input)) continue;
      throw BadContents("file", fmt::format("without tensors but for the inputs of {}", op_), shown(name));
    }
  }
}

/// A struct of the operator's, with nothing given.
CaseArgs empty_call(const std::string& op) {
  std::optional<CaseArgs> found;
  std::vector<std::string_view> known;
  const auto consider = [&](const CaseArgs& args) {
    known.emplace_back(operator_name(args));
    if (op == known.back()) found = args;
  };
  [&]<size_t... kIndex>(std::index_sequence<kIndex...>) {
    (consider(CaseArgs(std::in_place_index<kIndex>)), ...);
  }(std::make_index_sequence<std::variant_size_v<CaseArgs>>());
  if (!found) throw BadContents(kOperatorKey, either_of(known), shown(op));
  return *found;
}

/// A file's bytes as memory: what is not looked at is not read, whatever size the file claims.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path) {
    const auto refuse = [](const std::string& why) { throw BadContents("file", "readable", why); };
    std::error_code error;
    bytes_ = std::filesystem::file_size(path, error);
    if (error) refuse(error.message());
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) refuse(std::generic_category().message(errno));
    if (bytes_ > 0) start_ = mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file, 0);
    const int map_error = errno;
    close(file);
    if (start_ == MAP_FAILED) refuse(std::generic_category().message(map_error));
  }
  ~MappedFile() {
    if (bytes_ > 0) munmap(start_, bytes_);
  }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const uint8_t> bytes() const { return {static_cast<const uint8_t*>(start_), bytes_}; }

 private:
  size_t bytes_ = 0;
  void* start_ = nullptr;
};

}  // namespace

LoadedCase read_case(std::span<const uint8_t> bytes) {
  const SafeTensors file = read_safetensors(bytes);
  Reader reader(file, static_cast<int64_t>(bytes.size()));
  CaseArgs args = empty_call(reader.op());
  std::visit([&](auto& a) { each_field(a, reader); }, args);
  reader.finish();
  return {args, reader.with_data(), reader.memory()};
}

}  // namespace casefile

LoadedCase load_case(const std::string& path) {
  try {
    const casefile::MappedFile file(path);
    return casefile::read_case(file.bytes());
  } catch (const casefile::BadContents& error) {
    throw CaseFileError(fmt::format("load_case: {}: {}", path, error.what()));
  }
}

}  // namespace tilewise
