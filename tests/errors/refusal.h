// Spoils valid calls and asserts the whole text of what every entry point then throws.
#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <functional>
#include <string>
#include <vector>

#include "cuda/kernels.h"
#include "ops/checks.h"
#include "tests/errors/calls.h"

namespace tilewise::errors {

inline TensorView with(const TensorView& view, DType type, std::vector<int64_t> shape,
                       std::vector<int64_t> strides) {
  return {view.data(), type, shape, strides, view.device()};
}
inline std::vector<int64_t> shape_of(const TensorView& view) {
  return {view.shape().begin(), view.shape().end()};
}
inline std::vector<int64_t> strides_of(const TensorView& view) {
  return {view.strides().begin(), view.strides().end()};
}
inline TensorView with_dtype(const TensorView& view, DType type) {
  return with(view, type, shape_of(view), strides_of(view));
}
inline TensorView with_size(const TensorView& view, int dim, int64_t size) {
  auto shape = shape_of(view);
  shape.at(static_cast<size_t>(dim)) = size;
  return with(view, view.dtype(), shape, strides_of(view));
}
inline TensorView with_stride(const TensorView& view, int dim, int64_t stride) {
  auto strides = strides_of(view);
  strides.at(static_cast<size_t>(dim)) = stride;
  return with(view, view.dtype(), shape_of(view), strides);
}
inline TensorView with_extra_dim(const TensorView& view) {
  auto shape = shape_of(view);
  auto strides = strides_of(view);
  shape.push_back(1);
  strides.push_back(1);
  return with(view, view.dtype(), shape, strides);
}
inline TensorView at_address(const TensorView& view, const void* data) {
  return {data, view.dtype(), view.shape(), view.strides(), view.device()};
}
inline TensorView shifted(const TensorView& view, int64_t bytes) {
  return at_address(view, view.data_as<const char>() + bytes);
}
inline TensorView on_cuda(const TensorView& view) {
  return {view.data(), view.dtype(), view.shape(), view.strides(), DeviceId{DeviceType::kCuda, 1}};
}

/// "[2, 3]".
inline std::string list(const std::vector<int64_t>& values) {
  std::string text = "[";
  for (size_t i = 0; i < values.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

inline void once(const DenseDecodeArgs& args) { dense_decode(args); }
inline void once(const SparseDecodeArgs& args) { sparse_decode(args); }
inline void once(const SparsePrefillFwdArgs& args) { sparse_prefill_fwd(args); }
inline void once(const FusedPrefillArgs& args) { fused_prefill(args); }
inline void once(const FusedDecodeArgs& args) { fused_decode(args); }
inline void once(const FusedDecodePartialsArgs& args) { fused_decode_partials(args); }
inline void once(const CombinePartialsArgs& args) { combine_partials(args); }
inline void once(const CombinePartialsFusedArgs& args) { combine_partials_fused(args); }
inline void once(const QuantizeKvArgs& args) { quantize_kv(args); }
inline void once(const DequantizeKvArgs& args) { dequantize_kv(args); }
inline void once(const AppendKvArgs& args) { append_kv(args); }
inline void once(const DensePrefillFwdArgs& args) { dense_prefill_fwd(args); }
inline void once(const DensePrefillBwdArgs& args) { dense_prefill_bwd(args); }
inline void once(const BlockSparsePrefillFwdArgs& args) { block_sparse_prefill_fwd(args); }
inline void once(const BlockSparsePrefillBwdArgs& args) { block_sparse_prefill_bwd(args); }
inline void once(const SparsePrefillBwdArgs& args) { sparse_prefill_bwd(args); }
inline void once(const ExpandBlockSelectionArgs& args) { expand_block_selection(args); }
inline void once(const InvertBlockSelectionArgs& args) { invert_block_selection(args); }
inline void once(const PermuteQBProjArgs& args) { permute_q_b_proj(args); }
inline void once(const PermuteWvProjArgs& args) { permute_wv_proj(args); }

/// The text of the InvalidArgument that `body` throws.
template <class Body>
std::string text_of_refusal(Body body) {
  try {
    body();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// Some operators are single functions, without kernels to choose from.
template <class Args>
inline constexpr bool kHasPlan = requires(const Args& args) { plan(args, Device::cpu()); };

template <class Args>
void judge(const Args& args) {
  if constexpr (kHasPlan<Args>) {
    check(args, DeviceId{});
  } else {
    check(args);
  }
}

template <class Args>
void expect_accepted(const Call<Args>& call, const std::string& what = "the unspoilt call") {
  EXPECT_EQ(text_of_refusal([&] { judge(call.args); }), "nothing was thrown") << what;
}

/// The spoilt call is refused with "<operator>: <text>" by the check and by every entry point, and no output
/// has changed. `valid` is the call as it was.
template <class Args>
void expect_refused(const Call<Args>& valid, const Call<Args>& spoilt, const std::string& text) {
  const std::string expected = std::string(spoilt.op) + ": " + text;
  EXPECT_EQ(text_of_refusal([&] { judge(spoilt.args); }), expected);
  if (::testing::Test::HasFailure()) return;  // running it might read memory that is not there
  EXPECT_EQ(text_of_refusal([&] { once(spoilt.args); }), expected);
  if constexpr (kHasPlan<Args>) {
    EXPECT_EQ(text_of_refusal([&] { plan(spoilt.args, Device::cpu()); }), expected);
    EXPECT_EQ(text_of_refusal([&] { explain(spoilt.args, Device::cpu()); }), expected);
    const Plan good = plan(valid.args, Device::cpu());
    const OwnedWorkspace workspace(good.workspace_bytes());
    EXPECT_EQ(text_of_refusal([&] { run(good, spoilt.args, workspace); }), expected);
  }
  EXPECT_TRUE(spoilt.memory.outputs_untouched());
}

/// One way to spoil a call, and the text that follows.
template <class Args>
struct Row {
  std::string what;
  std::function<void(Call<Args>&)> spoil;
  std::string text;
};

template <class Args>
void expect_rows(Call<Args> (*make)(), const std::vector<Row<Args>>& rows) {
  const Call<Args> valid = make();
  expect_accepted(valid);
  for (const Row<Args>& row : rows) {
    SCOPED_TRACE(row.what);
    Call<Args> call = make();
    row.spoil(call);
    expect_refused(valid, call, row.text);
    if (::testing::Test::HasFailure()) return;
  }
}

/// Everything that is asked of one tensor whatever the operator, from its line in Call::arguments.
template <class Args>
class ArgumentRows {
 public:
  ArgumentRows(const Call<Args>& call, size_t place)
      : argument_(call.arguments[place]), view_(call.args.*argument_.view) {
    add_presence();
    add_type_and_shape();
    add_device(call, place);
    add_memory();
    add_strides();
    if (argument_.output) add_overlaps(call, place);
  }
  std::vector<Row<Args>> take() { return std::move(rows_); }

 private:
  void add(const std::string& what, const TensorView& view, const std::string& text) {
    const auto member = argument_.view;
    rows_.push_back({std::string(argument_.name) + ": " + what,
                     [member, view](Call<Args>& call) { call.args.*member = moved(view, call.args.*member); },
                     std::string(argument_.name) + " must be " + text});
  }

  /// The view in another call's buffer. Buffers begin at multiples of 64 bytes, so that a shift by less
  /// shows.
  static TensorView moved(const TensorView& view, const TensorView& target) {
    if (!view || view.data() == nullptr) return view;
    const auto past = reinterpret_cast<uintptr_t>(view.data()) % 64;
    return at_address(view, target.data_as<const char>() + past);
  }

  void add_presence() {
    if (argument_.missing != nullptr) add("left out", {}, std::string(argument_.missing) + ", got nothing");
  }

  void add_type_and_shape() {
    const std::string text = argument_.expected + ", got ";
    const auto shape = shape_of(view_);
    add("float64", with_dtype(view_, DType::kFP64), text + "float64 " + list(shape));
    add("unknown type", with_dtype(view_, DType::kUnknown), text + "an unknown type " + list(shape));
    const auto got = [&](const TensorView& view) {
      return text + to_string(view_.dtype()) + " " + list(shape_of(view));
    };
    if (view_.rank() < TensorView::kMaxRank) {
      const TensorView longer = with_extra_dim(view_);
      add("one dimension more", longer, got(longer));
    }
    const auto dims = expected_dims();
    ASSERT_EQ(dims.size(), shape.size()) << argument_.expected;
    for (int i = 0; i < view_.rank(); ++i) {
      if (std::isdigit(static_cast<unsigned char>(dims[static_cast<size_t>(i)][0])) == 0) continue;
      for (int64_t size : {view_.size(i) + 1, view_.size(i) - 1, int64_t{0}}) {
        const TensorView other = with_size(view_, i, size);
        add("size " + std::to_string(size) + " in dimension " + std::to_string(i), other, got(other));
      }
    }
  }

  void add_device(const Call<Args>& call, size_t place) {
    add("on a GPU", on_cuda(view_), "on cpu, got cuda:1");
    if (kHasPlan<Args> || !cuda::kBuilt || place != 0) return;
    // The permutations run where their weight lies, so that the tensors behind it are in the wrong place.
    rows_.back().text = std::string(call.arguments[1].name) + " must be on cuda:1, got cpu";
  }

  void add_memory() {
    add("null", at_address(view_, nullptr), "memory, got a null pointer");
    const bool small = size_of(view_.dtype()) <= 2 && view_.rank() >= 2;
    const int64_t unit = small ? 16 : size_of(view_.dtype());
    if (unit == 1) return;
    add("misaligned", shifted(view_, unit / 2),
        "memory that starts at a multiple of " + std::to_string(unit) + " bytes, got an address " +
            std::to_string(unit / 2) + " byte" + (unit == 2 ? "" : "s") + " past one");
  }

  void add_strides() {
    const int last = view_.rank() - 1;
    if (argument_.strides == Strides::kRows) {
      if (view_.size(last) > 1) {
        add("gaps in the last dimension", with_stride(view_, last, 2),
            "contiguous in its last dimension, got stride(" + std::to_string(last) + ") 2");
      }
      const int64_t bytes = size_of(view_.dtype());
      for (int i = 0; bytes <= 2 && i < last; ++i) {
        if (view_.size(i) == 1) continue;
        const int64_t stride = view_.stride(i) + 8 / bytes;
        add("half a unit more in stride " + std::to_string(i), with_stride(view_, i, stride),
            "of strides of whole 16 bytes, got stride(" + std::to_string(i) + ") of " +
                std::to_string(stride * bytes) + " bytes");
      }
      if (argument_.output && last > 0) add_self_overlap();
    } else if (argument_.strides == Strides::kContiguous) {
      for (int i = 0; i <= last; ++i) {
        const TensorView gaps = with_stride(view_, i, view_.stride(i) + 16);
        add("gaps in dimension " + std::to_string(i), gaps,
            "contiguous, got shape " + list(shape_of(gaps)) + " with strides " + list(strides_of(gaps)));
      }
    } else if (argument_.strides == Strides::kPages) {
      add_pages();
    }
  }

  void add_self_overlap() {
    const TensorView folded = with_stride(view_, 0, 0);
    add("rows in one place", folded,
        "of elements that lie apart in memory, got shape " + list(shape_of(folded)) + " with strides " +
            list(strides_of(folded)));
  }

  void add_pages() {
    const int64_t bytes = size_of(view_.dtype());
    for (int dim : {1, 3}) {
      const TensorView gaps = with_stride(view_, dim, view_.stride(dim) + 16);
      add("gaps inside a page, dimension " + std::to_string(dim), gaps,
          "contiguous inside a page, got strides " + list(strides_of(gaps)));
    }
    const int64_t page = view_.stride(0) * bytes;
    add("a block stride of no whole unit", with_stride(view_, 0, view_.stride(0) + 8 / bytes),
        "of blocks at strides of whole 16 bytes, got stride(0) of " + std::to_string(page + 8) + " bytes");
    for (int64_t stride : {page - 16, int64_t{0}, -page}) {
      add("blocks in one another", with_stride(view_, 0, stride / bytes),
          "of blocks at least " + std::to_string(page) + " bytes apart, got stride(0) of " +
              std::to_string(stride) + " bytes");
    }
  }

  /// Puts the output where each other tensor lies. Of two outputs the later one is named.
  void add_overlaps(const Call<Args>& call, size_t place) {
    for (size_t i = 0; i < call.arguments.size(); ++i) {
      const Argument<Args>& other = call.arguments[i];
      if (i == place) continue;
      const bool named = !other.output || i < place;
      const auto member = argument_.view;
      const auto target = other.view;
      rows_.push_back({std::string(argument_.name) + " in the place of " + other.name,
                       [member, target](Call<Args>& spoilt) {
                         spoilt.args.*member = at_address(spoilt.args.*member, (spoilt.args.*target).data());
                       },
                       std::string(named ? argument_.name : other.name) + " must be in memory apart from " +
                           (named ? other.name : argument_.name) + ", got an overlap"});
    }
  }

  /// The dimensions as the expectation spells them.
  std::vector<std::string> expected_dims() const {
    const std::string& text = argument_.expected;
    const size_t begin = text.find('[') + 1;
    std::vector<std::string> dims{""};
    for (char c : text.substr(begin, text.find(']') - begin)) {
      if (c == ',') {
        dims.emplace_back();
      } else if (c != ' ' || !dims.back().empty()) {
        dims.back() += c;
      }
    }
    return dims;
  }

  Argument<Args> argument_;
  TensorView view_;
  std::vector<Row<Args>> rows_;
};

/// All rows of all of a call's arguments, and that optional ones may be left out.
template <class Args>
void expect_argument_rows(Call<Args> (*make)()) {
  const Call<Args> valid = make();
  std::vector<Row<Args>> rows;
  for (size_t i = 0; i < valid.arguments.size(); ++i) {
    const Argument<Args>& argument = valid.arguments[i];
    for (Row<Args>& row : ArgumentRows<Args>(valid, i).take()) rows.push_back(std::move(row));
    if (argument.missing == nullptr) {
      Call<Args> call = make();
      call.args.*argument.view = {};
      expect_accepted(call, std::string("without ") + argument.name);
    }
  }
  ASSERT_GT(rows.size(), 8 * valid.arguments.size() - 1);
  expect_rows(make, rows);
}

}  // namespace tilewise::errors
