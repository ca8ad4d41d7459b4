#include "training.h"

#include <cstring>

#include "core/check.h"
#include "flashmla_names.h"
#include "operator.h"
#include "tilewise/ops/block_sparse_prefill.h"
#include "tilewise/ops/dense_prefill.h"
#include "tilewise/ops/sparse_prefill.h"

namespace tilewise::bindings {
namespace {

// ---- what the operators on whole sequences share ------------------------------------------------

void read_tensors(Inputs& in, VarlenCommon& args) {
  args.q = in.tensor("q");
  args.k = in.tensor("k");
  args.v = in.tensor("v");
}

void read_lengths(Inputs& in, VarlenCommon& args) {
  args.cu_seqlens_q = in.tensor("cu_seqlens_q");
  args.cu_seqlens_k = in.tensor("cu_seqlens_k");
  args.max_seqlen_q = in.integer();
  args.max_seqlen_k = in.integer();
  args.softmax_scale = in.number();
}

void read_mask(Inputs& in, VarlenCommon& args) {
  args.causal = in.boolean();
  args.window = in.window("window");
  args.sink_bias = in.optional_tensor("sink_bias");
}

void read_blocks(Inputs& in, BlockSparseCommon& args) {
  args.q_block = in.integer();
  args.kv_block = in.integer();
}

/// The forward operator's results, which come behind q, k and v.
void read_results(Inputs& in, VarlenGradients& args) {
  args.out = in.tensor("out");
  args.lse = in.tensor("lse");
}

/// Element types of matrices; any where q's is wrong, which is refused later.
DType type_of(const TensorView& q) { return q.dtype() == DType::kFP16 ? DType::kFP16 : DType::kBF16; }

TensorView allocate_3d(Outputs& outputs, DType type, const TensorView& rows, const TensorView& columns) {
  return outputs.empty(type, {size_or_zero(rows, 0), size_or_zero(rows, 1), size_or_zero(columns, 2)});
}

/// The gradient of a sink_bias; without one nothing, and a tensor without elements is what is returned.
TensorView allocate_d_sink(Outputs& outputs, const TensorView& q, const TensorView& sink_bias) {
  if (!sink_bias) {
    outputs.nothing();
    return {};
  }
  const DType type = sink_bias.dtype();
  const bool narrow = type == DType::kBF16 || type == DType::kFP16;
  return outputs.empty(narrow ? type : DType::kFP32, {size_or_zero(q, 1)});
}

struct VarlenForward {
  static void take(Inputs& in, VarlenOutputs& args) {
    args.out = in.output("out");
    args.lse = in.output("lse");
  }
  template <class Args>
  static void allocate(Outputs& outputs, Args& args) {
    args.out = allocate_3d(outputs, type_of(args.q), args.q, args.v);
    args.lse = outputs.empty(DType::kFP32, {size_or_zero(args.q, 0), size_or_zero(args.q, 1)});
  }
};

struct VarlenBackward {
  static void take(Inputs& in, VarlenGradients& args) {
    args.dq = in.output("dq");
    args.dk = in.output("dk");
    args.dv = in.output("dv");
    args.d_sink = in.optional_output("d_sink");
  }
  template <class Args>
  static void allocate(Outputs& outputs, Args& args) {
    const DType type = type_of(args.q);
    args.dq = allocate_3d(outputs, type, args.q, args.q);
    args.dk = allocate_3d(outputs, type, args.k, args.k);
    args.dv = allocate_3d(outputs, type, args.v, args.v);
    args.d_sink = allocate_d_sink(outputs, args.q, args.sink_bias);
  }
};

// ---- all keys of a sequence ---------------------------------------------------------------------

struct DensePrefillFwd : VarlenForward {
  static constexpr const char* kName = "dense_prefill_fwd";
  using Args = DensePrefillFwdArgs;

  static void read(Inputs& in, Args& args) {
    read_tensors(in, args);
    read_lengths(in, args);
    read_mask(in, args);
  }
};

struct DensePrefillBwd : VarlenBackward {
  static constexpr const char* kName = "dense_prefill_bwd";
  using Args = DensePrefillBwdArgs;

  static void read(Inputs& in, Args& args) {
    args.d_out = in.gradient("d_out");
    read_tensors(in, args);
    read_results(in, args);
    read_lengths(in, args);
    read_mask(in, args);
    args.deterministic = in.boolean();
  }
};

// ---- selected blocks of keys --------------------------------------------------------------------

struct BlockSparsePrefillFwd : VarlenForward {
  static constexpr const char* kName = "block_sparse_prefill_fwd";
  using Args = BlockSparsePrefillFwdArgs;

  static void read(Inputs& in, Args& args) {
    read_tensors(in, args);
    args.q2k = in.optional_tensor("q2k");
    read_lengths(in, args);
    read_blocks(in, args);
    read_mask(in, args);
  }
};

struct BlockSparsePrefillBwd : VarlenBackward {
  static constexpr const char* kName = "block_sparse_prefill_bwd";
  using Args = BlockSparsePrefillBwdArgs;

  static void read(Inputs& in, Args& args) {
    args.d_out = in.gradient("d_out");
    read_tensors(in, args);
    read_results(in, args);
    args.q2k = in.optional_tensor("q2k");
    read_lengths(in, args);
    read_blocks(in, args);
    read_mask(in, args);
    args.deterministic = in.boolean();
  }
};

// ---- listed tokens ------------------------------------------------------------------------------

/// The library writes kl_target where it is given; torch's callers say whether they want it as well, so that
/// the output has another name.
struct SparsePrefillBwdWithTarget : SparsePrefillBwdArgs {
  bool wants_kl_target = false;
};

constexpr Rename kSparsePrefillBwdNames[] = {{"kl_target", "kl_target_out"}};

void call(const SparsePrefillBwdWithTarget& args, DeviceId id) {
  const SparsePrefillBwdArgs& plain = args;
  renamed("sparse_prefill_bwd", kSparsePrefillBwdNames, [&] { bindings::call(plain, id); });
}

struct SparsePrefillBwd {
  static constexpr const char* kName = "sparse_prefill_bwd";
  using Args = SparsePrefillBwdWithTarget;

  static void read(Inputs& in, Args& args) {
    args.d_out = in.gradient("d_out");
    args.q = in.tensor("q");
    args.kv = in.tensor("kv");
    args.out = in.tensor("out");
    args.lse = in.tensor("lse");
    args.indices = in.tensor("indices");
    args.softmax_scale = in.number();
    args.d_v = in.integer();
    args.topk_length = in.optional_tensor("topk_length");
    args.sink_bias = in.optional_tensor("sink_bias");
    args.wants_kl_target = in.boolean();
    args.deterministic = in.boolean();
  }
  static void take(Inputs& in, Args& args) {
    args.dq = in.output("dq");
    args.dkv = in.output("dkv");
    args.d_sink = in.optional_output("d_sink");
    args.kl_target = in.optional_output("kl_target_out");
    if (args.wants_kl_target && !args.kl_target) {
      in.refuse("kl_target_out", "given where kl_target is True", "nothing");
    } else if (!args.wants_kl_target && args.kl_target) {
      in.refuse("kl_target_out", "left out where kl_target is False", to_string(args.kl_target));
    }
  }
  static void allocate(Outputs& outputs, Args& args) {
    args.dq = allocate_3d(outputs, DType::kBF16, args.q, args.q);
    args.dkv = allocate_3d(outputs, DType::kBF16, args.kv, args.kv);
    args.d_sink = allocate_d_sink(outputs, args.q, args.sink_bias);
    if (args.wants_kl_target) {
      args.kl_target = outputs.empty(DType::kFP32, {size_or_zero(args.q, 0), size_or_zero(args.indices, 2)});
    } else {
      outputs.nothing();
    }
  }
};

// ---- selections ---------------------------------------------------------------------------------

/// A selection is [rows, n] or [h_q, rows, n]: its dimension `dim` from the front of [rows, n].
int64_t selection_size(const TensorView& q2k, int dim) {
  return size_or_zero(q2k, q2k.rank() == 3 ? dim + 1 : dim);
}

struct ExpandBlockSelection {
  static constexpr const char* kName = "expand_block_selection";
  using Args = ExpandBlockSelectionArgs;

  static void read(Inputs& in, Args& args) {
    args.q2k = in.tensor("q2k");
    args.factor = in.integer();
  }
  static void take(Inputs& in, Args& args) { args.out = in.output("out"); }
  static void allocate(Outputs& outputs, Args& args) {
    const int64_t width = selection_size(args.q2k, 1);
    // A factor that is refused must not be allocated for.
    const bool sound = args.factor >= 1 && args.factor <= kMaxCount && args.q2k.dtype() == DType::kInt32;
    const int64_t rows = sound ? selection_size(args.q2k, 0) * args.factor : 0;
    const bool fits = rows <= kMaxCount;
    if (args.q2k.rank() == 3) {
      args.out = outputs.empty(DType::kInt32, {args.q2k.size(0), fits ? rows : 0, width});
    } else {
      args.out = outputs.empty(DType::kInt32, {fits ? rows : 0, width});
    }
  }
};

struct InvertBlockSelection {
  static constexpr const char* kName = "invert_block_selection";
  using Args = InvertBlockSelectionArgs;

  static void read(Inputs& in, Args& args) {
    args.q2k = in.tensor("q2k");
    args.num_kv_blocks = in.integer();
  }
  static void take(Inputs& in, Args& args) {
    args.row_ptr = in.output("row_ptr");
    args.q_blocks = in.output("q_blocks");
  }
};

TensorView allocate_row_ptr(Outputs& outputs, const InvertBlockSelectionArgs& args) {
  const bool sound = args.num_kv_blocks >= 0 && args.num_kv_blocks < kMaxCount;
  const int64_t places = sound ? args.num_kv_blocks + 1 : 0;
  return args.q2k.rank() == 3 ? outputs.empty(DType::kInt32, {args.q2k.size(0), places})
                              : outputs.empty(DType::kInt32, {places});
}

/// The functional form returns as many entries as there are, which only the values tell.
void invert_functional(StableIValue* stack, uint64_t num_inputs, uint64_t) {
  Inputs in(InvertBlockSelection::kName, stack, num_inputs);
  InvertBlockSelectionArgs args;
  InvertBlockSelection::read(in, args);
  in.finish();
  Outputs outputs(in.device());
  Outputs scratch(in.device());
  args.row_ptr = allocate_row_ptr(outputs, args);
  args.q_blocks = scratch.empty(DType::kInt32, {args.q2k.numel()});
  bindings::call(args, in.device());
  const int64_t places = args.row_ptr.numel();
  const int64_t n = places == 0 ? 0 : args.row_ptr.data_as<const int32_t>()[places - 1];
  const TensorView q_blocks = outputs.empty(DType::kInt32, {n});
  if (n > 0) {
    std::memcpy(q_blocks.data_as<int32_t>(), args.q_blocks.data_as<const int32_t>(),
                static_cast<size_t>(n) * sizeof(int32_t));
  }
  outputs.give(stack);
}

}  // namespace

void implement_training(torch::stable::detail::StableLibrary& library) {
  implement<DensePrefillFwd>(library);
  implement_no_grad<DensePrefillFwd>(library);
  implement<DensePrefillBwd>(library);
  implement<BlockSparsePrefillFwd>(library);
  implement_no_grad<BlockSparsePrefillFwd>(library);
  implement<BlockSparsePrefillBwd>(library);
  implement<SparsePrefillBwd>(library);
  implement<ExpandBlockSelection>(library);
  library.impl(InvertBlockSelection::kName, &invert_functional);
  implement_out<InvertBlockSelection>(library);
}

}  // namespace tilewise::bindings
