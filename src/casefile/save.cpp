// From an argument struct to a case file.
#include "casefile/save.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "casefile/fields.h"
#include "casefile/json.h"
#include "casefile/layout.h"
#include "casefile/runs.h"
#include "casefile/safetensors.h"
#include "core/footprint.h"

namespace tilewise {
namespace casefile {
namespace {

using nlohmann::json;

// JSON has no infinities and no NaN.
json to_json(float value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}
json to_json(int64_t value) { return value; }
json to_json(bool value) { return value; }
json to_json(Window value) { return {value.left, value.right}; }
json to_json(const std::optional<float>& value) { return value ? to_json(*value) : json(); }
json to_json(Record value) {
  const auto known = all_records();
  const bool named = value == Record::kAuto || std::find(known.begin(), known.end(), value) != known.end();
  return named ? json(record_name(value)) : json(static_cast<int32_t>(value));
}

struct Described {
  std::string name;
  TensorView view;
  Access access;
};

struct Collector {
  std::vector<Described> tensors;
  json options = json::object();

  void tensor(const char* name, const TensorView& view, Access access) {
    if (view) tensors.push_back({name, view, access});
  }
  template <class T>
  void option(const char* name, const T& value) {
    options[name] = to_json(value);
  }
};

bool has_memory(const TensorView& view) { return view.data() != nullptr && footprint(view).run > 0; }

int64_t capped_sum(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

// Memory that one tensor covers, or several whose bytes lie among each other's.
struct Memory {
  int64_t first = 0;  // address
  int64_t end = 0;
};

std::vector<Memory> memories_of(const std::vector<Described>& tensors) {
  std::vector<Memory> pieces;
  for (const Described& t : tensors) {
    if (!has_memory(t.view)) continue;
    const Footprint place = footprint(t.view);
    pieces.push_back({place.first, capped_sum(place.first, place.extent())});
  }
  std::sort(pieces.begin(), pieces.end(), [](const Memory& a, const Memory& b) { return a.first < b.first; });
  std::vector<Memory> merged;
  for (const Memory& piece : pieces) {
    if (merged.empty() || piece.first >= merged.back().end) {
      merged.push_back(piece);
    } else {
      merged.back().end = std::max(merged.back().end, piece.end);
    }
  }
  return merged;
}

json to_json(const TensorView& view, const std::vector<Memory>& memories) {
  json entry = {{"dtype", to_string(view.dtype())},
                {"shape", std::vector(view.shape().begin(), view.shape().end())},
                {"strides", std::vector(view.strides().begin(), view.strides().end())},
                {"memory", nullptr},
                {"at", 0}};
  if (!has_memory(view)) return entry;
  const int64_t first = footprint(view).first;
  for (size_t i = 0; i < memories.size(); ++i) {
    if (first < memories[i].first || first >= memories[i].end) continue;
    entry["memory"] = i;
    entry["at"] = reinterpret_cast<intptr_t>(view.data()) - memories[i].first;
  }
  return entry;
}

}  // namespace

Outline::Outline(const CaseArgs& args) {
  Collector call;
  CaseArgs copy = args;
  std::visit([&](auto& a) { each_field(a, call); }, copy);

  json tensors = json::object();
  const std::vector<Memory> memories = memories_of(call.tensors);
  for (const Described& t : call.tensors) {
    if (t.view.device() != DeviceId{}) throw BadContents(t.name, "on cpu", to_string(t.view.device()));
    tensors[t.name] = to_json(t.view, memories);
    if (t.access == Access::kWritten || !has_memory(t.view)) continue;
    stored_.emplace_back(t.name, t.view);
    data_bytes_ = capped_sum(data_bytes_, t.view.numel() * size_of(t.view.dtype()));
  }
  json places = json::array();
  for (const Memory& m : memories) {
    places.push_back({{"bytes", m.end - m.first}, {"past", m.first & (kAddressUnit - 1)}});
  }
  metadata_ = {{kVersionKey, kVersion},
               {kOperatorKey, operator_name(args)},
               {kOptionsKey, call.options.dump()},
               {kTensorsKey, tensors.dump()},
               {kMemoryKey, places.dump()}};
}

void Outline::write(OutputFile& file, bool with_data) const {
  auto metadata = metadata_;
  metadata[kDataKey] = with_data ? kDataSaved : kDataLeftOut;
  std::vector<std::pair<std::string, StoredTensor>> entries;
  int64_t at = 0;
  for (const auto& [name, view] : stored_) {
    if (!with_data) break;
    const int64_t end = at + view.numel() * size_of(view.dtype());
    entries.emplace_back(
        name, StoredTensor{stored_type(view.dtype()), {view.shape().begin(), view.shape().end()}, at, end});
    at = end;
  }
  const std::string header = safetensors_header(metadata, entries);
  file.append(header.data(), header.size());
  if (with_data) {
    for (const auto& [name, view] : stored_) {
      for_each_run(view,
                   [&](const uint8_t* run, int64_t bytes) { file.append(run, static_cast<size_t>(bytes)); });
    }
  }
  file.keep();
}

}  // namespace casefile

const char* operator_name(const CaseArgs& args) {
  // In the order of CaseArgs.
  static constexpr const char* kNames[] = {"dense_decode",
                                           "sparse_decode",
                                           "sparse_prefill_fwd",
                                           "fused_prefill",
                                           "fused_decode",
                                           "fused_decode_partials",
                                           "combine_partials",
                                           "combine_partials_fused",
                                           "quantize_kv",
                                           "dequantize_kv",
                                           "append_kv",
                                           "permute_q_b_proj",
                                           "permute_wv_proj",
                                           "dense_prefill_fwd",
                                           "dense_prefill_bwd",
                                           "block_sparse_prefill_fwd",
                                           "block_sparse_prefill_bwd",
                                           "expand_block_selection",
                                           "invert_block_selection",
                                           "sparse_prefill_bwd"};
  static_assert(std::size(kNames) == std::variant_size_v<CaseArgs>);
  return kNames[args.index()];
}

void save_case(const std::string& path, const CaseArgs& args) {
  try {
    const casefile::Outline outline(args);
    casefile::OutputFile file(path, casefile::OutputFile::Existing::kReplace);
    outline.write(file, true);
  } catch (const casefile::BadContents& error) {
    throw CaseFileError(fmt::format("save_case: {}: {}", path, error.what()));
  }
}

}  // namespace tilewise
