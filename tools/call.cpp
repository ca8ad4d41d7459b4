// The oracle for whole calls. Attention and merging have it in cases/; what moves bytes is compared byte for
// byte.
#include "tools/call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <type_traits>

#include "casefile/fields.h"
#include "casefile/runs.h"
#include "cases/support_table.h"
#include "core/footprint.h"
#include "ops/checks.h"
#include "reference/dequant.h"
#include "tools/measure.h"

namespace tilewise::tools {
namespace {

using cases::Judgement;
using NamedBytes = std::vector<std::pair<std::string, std::vector<uint8_t>>>;

// Operators that are single functions, without kernels to choose from.
template <class T>
constexpr bool kIsPlain =
    std::is_same_v<T, PermuteQBProjArgs> || std::is_same_v<T, PermuteWvProjArgs> ||
    std::is_same_v<T, ExpandBlockSelectionArgs> || std::is_same_v<T, InvertBlockSelectionArgs>;
template <class T>
constexpr bool kIsTraining = std::is_same_v<T, SparsePrefillBwdArgs> || std::is_base_of_v<VarlenCommon, T>;
template <class T>
constexpr bool kIsMove = std::is_same_v<T, QuantizeKvArgs> || std::is_same_v<T, DequantizeKvArgs> ||
                         std::is_same_v<T, AppendKvArgs>;

std::vector<uint8_t> elements(const TensorView& view) {
  std::vector<uint8_t> bytes;
  bytes.reserve(static_cast<size_t>(view.numel() * size_of(view.dtype())));
  casefile::for_each_run(view,
                         [&](const uint8_t* run, int64_t n) { bytes.insert(bytes.end(), run, run + n); });
  return bytes;
}

// A cache's memory from its first element on. Valid caches have no negative strides.
std::span<const uint8_t> memory_of(const TensorView& pages) {
  return {pages.data_as<const uint8_t>(), static_cast<size_t>(footprint(pages).extent())};
}

// The elements of a view, had it that memory.
std::vector<uint8_t> elements_in(const TensorView& view, const std::vector<uint8_t>& memory) {
  return elements({memory.data(), view.dtype(), view.shape(), view.strides()});
}

NamedBytes expected_bytes(const QuantizeKvArgs& a) {
  return {{"pages", elements_in(a.pages, reference::after_quantize(a, memory_of(a.pages)))}};
}

NamedBytes expected_bytes(const DequantizeKvArgs& a) {
  const std::vector<uint16_t> x = reference::dequantized(a);
  const auto* bytes = reinterpret_cast<const uint8_t*>(x.data());
  return {{"x", {bytes, bytes + x.size() * sizeof(uint16_t)}}};
}

NamedBytes expected_bytes(const AppendKvArgs& a) {
  return {{"cache", elements_in(a.cache, reference::after_append(a, memory_of(a.cache)))}};
}

// Pieces of `unit` bytes, where piece number i comes from place from(i).
template <class From>
std::vector<uint8_t> gathered(const std::vector<uint8_t>& source, int64_t unit, const From& from) {
  std::vector<uint8_t> bytes;
  bytes.reserve(source.size());
  for (int64_t i = 0; i * unit < static_cast<int64_t>(source.size()); ++i) {
    const auto begin = source.begin() + from(i) * unit;
    bytes.insert(bytes.end(), begin, begin + unit);
  }
  return bytes;
}

NamedBytes expected_bytes(const PermuteQBProjArgs& a) {
  // Row (c / 16) * h_q * 16 + h * 16 + c % 16 of the result is row h * d_q + c.
  const auto from = [&](int64_t row) {
    const int64_t h = row / 16 % a.h_q;
    const int64_t c = row / (16 * a.h_q) * 16 + row % 16;
    return h * a.d_q + c;
  };
  const int64_t scale_bytes = a.scales.size(1) * size_of(DType::kInt32);
  return {{"weight_out", gathered(elements(a.weight), a.weight.size(1), from)},
          {"scales_out", gathered(elements(a.scales), scale_bytes, from)}};
}

NamedBytes expected_bytes(const PermuteWvProjArgs& a) {
  // Group (c / 32) * group_size + i of 32 columns in a row of the result is group i * d_o / 32 + c / 32; a
  // byte of the scales belongs to each.
  const int64_t per_head = a.d_o / 32;
  const int64_t per_row = a.group_size * per_head;
  const auto from = [&](int64_t group) {
    const int64_t in_row = group % per_row;
    return group - in_row + in_row % a.group_size * per_head + in_row / a.group_size;
  };
  return {{"weight_out", gathered(elements(a.weight), 32, from)},
          {"scales_out", gathered(elements(a.scales), 1, from)}};
}

// A selection's rows, [heads][rows][n].
std::vector<std::vector<int32_t>> rows_of(const TensorView& q2k) {
  const std::vector<uint8_t> bytes = elements(q2k);
  const auto n = static_cast<size_t>(q2k.size(q2k.rank() - 1));
  std::vector<std::vector<int32_t>> rows;
  for (int64_t r = 0; r < (n == 0 ? 0 : q2k.numel() / static_cast<int64_t>(n)); ++r) {
    rows.emplace_back(n);
    std::memcpy(rows.back().data(), bytes.data() + static_cast<size_t>(r) * n * 4, n * 4);
  }
  return rows;
}

std::vector<uint8_t> bytes_of(const std::vector<int32_t>& values) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
  return {bytes, bytes + values.size() * sizeof(int32_t)};
}

NamedBytes expected_bytes(const ExpandBlockSelectionArgs& a) {
  std::vector<int32_t> out;
  for (const std::vector<int32_t>& row : rows_of(a.q2k)) {
    for (int64_t i = 0; i < a.factor; ++i) out.insert(out.end(), row.begin(), row.end());
  }
  return {{"out", bytes_of(out)}};
}

// What lies past the last entry stays what it was.
NamedBytes expected_bytes(const InvertBlockSelectionArgs& a) {
  const int64_t rows = a.q2k.size(a.q2k.rank() - 2);
  const int64_t heads = a.q2k.rank() == 3 ? a.q2k.size(0) : 1;
  const std::vector<std::vector<int32_t>> lists = rows_of(a.q2k);
  std::vector<int32_t> pointers;
  std::vector<int32_t> entries;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t block = 0; block <= a.num_kv_blocks; ++block) {
      pointers.push_back(static_cast<int32_t>(entries.size()));
      for (int64_t r = 0; block < a.num_kv_blocks && !lists.empty() && r < rows; ++r) {
        const std::vector<int32_t>& list = lists[static_cast<size_t>(h * rows + r)];
        if (std::find(list.begin(), list.end(), block) != list.end())
          entries.push_back(static_cast<int32_t>(r));
      }
    }
  }
  std::vector<uint8_t> q_blocks = elements(a.q_blocks);
  const std::vector<uint8_t> written = bytes_of(entries);
  std::copy(written.begin(), written.end(), q_blocks.begin());
  return {{"row_ptr", bytes_of(pointers)}, {"q_blocks", q_blocks}};
}

// Of the outputs, by name.
struct OutputFinder {
  NamedBytes bytes;

  void tensor(const char* name, const TensorView& view, casefile::Access access) {
    if (view && access != casefile::Access::kRead) bytes.emplace_back(name, elements(view));
  }
  template <class T>
  void option(const char*, const T&) {}
};

std::vector<uint8_t> output_bytes(CaseArgs args, const std::string& name) {
  OutputFinder finder;
  std::visit([&](auto& a) { casefile::each_field(a, finder); }, args);
  for (auto& [found, bytes] : finder.bytes) {
    if (found == name) return std::move(bytes);
  }
  return {};
}

Judgement compare_bytes(const std::string& name, const std::vector<uint8_t>& got,
                        const std::vector<uint8_t>& expected) {
  Judgement judgement{name, {}};
  if (got.size() != expected.size()) {
    judgement.comparison.note_wrong(
        [&] { return fmt::format("{} bytes, expected {}", got.size(), expected.size()); });
    return judgement;
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (got[i] == expected[i]) continue;
    judgement.comparison.note_wrong(
        [&] { return fmt::format("byte {}: got 0x{:02x}, expected 0x{:02x}", i, got[i], expected[i]); });
  }
  return judgement;
}

}  // namespace

std::vector<KernelVerdict> explain_call(const CaseArgs& args) {
  return std::visit(
      [&]<class T>(const T& a) -> std::vector<KernelVerdict> {
        if constexpr (kIsPlain<T>) {
          check(a);
          return {{cases::plain_kernel(DeviceType::kCpu), ""}};
        } else {
          return explain(a, Device::cpu());
        }
      },
      args);
}

double time_call(const CaseArgs& args, const PlanOptions& options) {
  return std::visit(
      [&]<class T>(const T& a) {
        if constexpr (std::is_same_v<T, PermuteQBProjArgs>) {
          return median_milliseconds([&] { permute_q_b_proj(a); });
        } else if constexpr (std::is_same_v<T, PermuteWvProjArgs>) {
          return median_milliseconds([&] { permute_wv_proj(a); });
        } else if constexpr (std::is_same_v<T, ExpandBlockSelectionArgs>) {
          return median_milliseconds([&] { expand_block_selection(a); });
        } else if constexpr (std::is_same_v<T, InvertBlockSelectionArgs>) {
          return median_milliseconds([&] { invert_block_selection(a); });
        } else {
          const Plan planned = plan(a, Device::cpu(), options);
          const OwnedWorkspace workspace(planned.workspace_bytes());
          return median_milliseconds([&] { run(planned, a, workspace); });
        }
      },
      args);
}

Expectation::Expectation(const CaseArgs& args) {
  std::visit(
      [&]<class T>(const T& a) {
        if constexpr (kIsMove<T> || kIsPlain<T>) {
          bytes_ = expected_bytes(a);
        } else if constexpr (kIsTraining<T>) {
          training_truth_ = cases::training_truth(a);
        } else {
          truth_ = cases::truth_of(cases::Args(a));
        }
      },
      args);
}

std::vector<Judgement> Expectation::judge(const CaseArgs& args) const {
  return std::visit(
      [&]<class T>(const T& a) {
        if constexpr (kIsMove<T> || kIsPlain<T>) {
          std::vector<Judgement> found;
          for (const auto& [name, expected] : bytes_) {
            found.push_back(compare_bytes(name, output_bytes(a, name), expected));
          }
          return found;
        } else if constexpr (kIsTraining<T>) {
          return cases::judge_training(a, training_truth_);
        } else {
          return cases::judge(cases::Args(a), truth_);
        }
      },
      args);
}

}  // namespace tilewise::tools
