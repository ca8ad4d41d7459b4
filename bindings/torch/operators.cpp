// torch.ops.tilewise.*: for each operator how its arguments are read, which outputs the overload `out` takes,
// and how the functional form allocates them. Both forms then make the same library call.
#include <torch/csrc/stable/library.h>

#include <algorithm>

#include "allocate.h"
#include "core/check.h"
#include "operator.h"
#include "schemas.h"
#include "training.h"

namespace tilewise::bindings {
namespace {

// ---- attention over caches and token lists ------------------------------------------------------

/// A plan's own operator has arguments of its decode, and the plan as its output.
template <class DecodeArgs>
struct PlanArgs : DecodeArgs {};

template <class DecodeArgs>
struct DecodePlan {
  using Args = PlanArgs<DecodeArgs>;

  static void take(Inputs& in, Args& args) { args.plan = in.output("plan"); }
  static void allocate(Outputs& outputs, Args& args) {
    args.plan = outputs.empty(DType::kInt32, {decode_plan_size(args)});
  }
};

struct DenseDecode {
  static constexpr const char* kName = "dense_decode";
  using Args = DenseDecodeArgs;

  static void read(Inputs& in, Args& args) {
    args.q = in.tensor("q");
    args.k_cache = in.tensor("k_cache");
    args.block_table = in.tensor("block_table");
    args.cache_seqlens = in.tensor("cache_seqlens");
    args.softmax_scale = in.number();
    args.d_v = in.integer();
    args.causal = in.boolean();
    args.window = in.window("window");
    args.attn_sink = in.optional_tensor("attn_sink");
    args.descale_q = in.optional_tensor("descale_q");
    args.descale_k = in.optional_tensor("descale_k");
    args.batch_invariant = in.boolean();
    args.plan = in.optional_tensor("plan");
  }
  static void take(Inputs& in, Args& args) {
    args.out = in.output("out");
    args.lse = in.output("lse");
  }
  static void allocate(Outputs& outputs, Args& args) {
    const TensorView& q = args.q;
    args.out = allocate_dense_out(outputs, args);
    args.lse = outputs.empty(DType::kFP32, {size_or_zero(q, 0), size_or_zero(q, 2), size_or_zero(q, 1)});
  }
};

struct SparseDecode {
  static constexpr const char* kName = "sparse_decode";
  using Args = SparseDecodeArgs;

  static void read(Inputs& in, Args& args) {
    args.q = in.tensor("q");
    args.kv_cache = in.tensor("kv_cache");
    args.indices = in.tensor("indices");
    args.softmax_scale = in.number();
    args.record = in.optional_record("record");
    args.topk_length = in.optional_tensor("topk_length");
    args.extra_cache = in.optional_tensor("extra_cache");
    args.extra_indices = in.optional_tensor("extra_indices");
    args.extra_topk_length = in.optional_tensor("extra_topk_length");
    args.extra_record = in.optional_record("extra_record");
    args.attn_sink = in.optional_tensor("attn_sink");
    args.batch_invariant = in.boolean();
    args.plan = in.optional_tensor("plan");
  }
  static void take(Inputs& in, Args& args) {
    args.out = in.output("out");
    args.lse = in.output("lse");
  }
  static void allocate(Outputs& outputs, Args& args) {
    const int64_t b = size_or_zero(args.q, 0);
    const int64_t s_q = size_or_zero(args.q, 1);
    const int64_t h_q = size_or_zero(args.q, 2);
    args.out = outputs.empty(DType::kBF16, {b, s_q, h_q, kHeadSize});
    args.lse = outputs.empty(DType::kFP32, {b, h_q, s_q});
  }
};

struct DenseDecodePlan : DecodePlan<DenseDecodeArgs> {
  static constexpr const char* kName = "dense_decode_plan";

  static void read(Inputs& in, Args& args) {
    args.q = in.tensor("q");
    args.k_cache = in.tensor("k_cache");
    args.block_table = in.tensor("block_table");
    args.cache_seqlens = in.tensor("cache_seqlens");
    args.causal = in.boolean();
    args.window = in.window("window");
  }
};

struct SparseDecodePlan : DecodePlan<SparseDecodeArgs> {
  static constexpr const char* kName = "sparse_decode_plan";

  static void read(Inputs& in, Args& args) {
    args.q = in.tensor("q");
    args.kv_cache = in.tensor("kv_cache");
    args.indices = in.tensor("indices");
    args.record = in.optional_record("record");
    args.topk_length = in.optional_tensor("topk_length");
    args.extra_cache = in.optional_tensor("extra_cache");
    args.extra_indices = in.optional_tensor("extra_indices");
    args.extra_topk_length = in.optional_tensor("extra_topk_length");
    args.extra_record = in.optional_record("extra_record");
  }
};

struct SparsePrefillFwdNoGrad {
  static constexpr const char* kName = "sparse_prefill_fwd";
  using Args = SparsePrefillFwdArgs;

  static void read(Inputs& in, Args& args) {
    args.q = in.tensor("q");
    args.kv = in.tensor("kv");
    args.indices = in.tensor("indices");
    args.softmax_scale = in.number();
    args.d_v = in.integer();
    args.topk_length = in.optional_tensor("topk_length");
    args.attn_sink = in.optional_tensor("attn_sink");
    args.sink_bias = in.optional_tensor("sink_bias");
  }
  static void allocate(Outputs& outputs, Args& args) {
    const int64_t s_q = size_or_zero(args.q, 0);
    const int64_t h_q = size_or_zero(args.q, 1);
    args.out = outputs.empty(DType::kBF16, {s_q, h_q, std::clamp<int64_t>(args.d_v, 0, kHeadSize)});
    args.max_logits = outputs.empty(DType::kFP32, {s_q, h_q});
    args.lse = outputs.empty(DType::kFP32, {s_q, h_q});
  }
};

struct SparsePrefillFwd : SparsePrefillFwdNoGrad {
  static void read(Inputs& in, Args& args) {
    SparsePrefillFwdNoGrad::read(in, args);
    args.indexer_topk = in.integer();
  }
  static void take(Inputs& in, Args& args) {
    args.out = in.output("out");
    args.max_logits = in.output("max_logits");
    args.lse = in.output("lse");
    args.lse_indexer = in.optional_output("lse_indexer");
  }
  static void allocate(Outputs& outputs, Args& args) {
    SparsePrefillFwdNoGrad::allocate(outputs, args);
    if (args.indexer_topk != 0) {
      args.lse_indexer = outputs.empty(DType::kFP32, {size_or_zero(args.q, 0), size_or_zero(args.q, 1)});
    } else {
      outputs.nothing();
    }
  }
};

// ---- fused attention ----------------------------------------------------------------------------

void read_fused_end(Inputs& in, FusedCommon& args) {
  args.token_positions = in.tensor("token_positions");
  args.cos_sin_cache = in.tensor("cos_sin_cache");
  args.softmax_scale = in.number();
  args.n_groups = in.integer();
  args.q_norm_eps = in.optional_number();
}

template <class Args>
void allocate_fused(Outputs& outputs, Args& args) {
  const int64_t s_q = size_or_zero(args.q, 0);
  const int64_t h_q = size_or_zero(args.q, 1);
  args.out_fp8 = allocate_out_fp8(outputs, s_q, h_q, args.n_groups);
  args.out_sf = allocate_out_sf(outputs, s_q, h_q, args.n_groups);
}

struct FusedPrefill {
  static constexpr const char* kName = "fused_prefill";
  using Args = FusedPrefillArgs;

  static void read(Inputs& in, Args& args) {
    args.q = in.tensor("q");
    args.kv = in.tensor("kv");
    args.indices = in.tensor("indices");
    read_fused_end(in, args);
    args.topk_length = in.optional_tensor("topk_length");
    args.attn_sink = in.optional_tensor("attn_sink");
  }
  static void take(Inputs& in, Args& args) {
    args.out_fp8 = in.output("out_fp8");
    args.out_sf = in.output("out_sf");
    args.max_logits = in.output("max_logits");
    args.lse = in.output("lse");
    args.out_bf16 = in.optional_output("out_bf16");
  }
  static void allocate(Outputs& outputs, Args& args) {
    allocate_fused(outputs, args);
    args.max_logits = outputs.empty(DType::kFP32, {size_or_zero(args.q, 0), size_or_zero(args.q, 1)});
    args.lse = outputs.empty(DType::kFP32, {size_or_zero(args.q, 0), size_or_zero(args.q, 1)});
  }
};

template <class Args>
void read_fused_decode(Inputs& in, Args& args) {
  args.q = in.tensor("q");
  args.kv_cache = in.tensor("kv_cache");
  args.indices = in.tensor("indices");
  read_fused_end(in, args);
  args.record = in.optional_record("record");
  args.topk_length = in.optional_tensor("topk_length");
  args.extra_cache = in.optional_tensor("extra_cache");
  args.extra_indices = in.optional_tensor("extra_indices");
  args.extra_topk_length = in.optional_tensor("extra_topk_length");
  args.extra_record = in.optional_record("extra_record");
  args.attn_sink = in.optional_tensor("attn_sink");
}

/// The library splits by itself; a number of splits that the caller names goes through explicit partial
/// results.
struct FusedDecodeWithSplits : FusedDecodeArgs {
  std::optional<int64_t> num_splits;
};

struct FusedDecode {
  static constexpr const char* kName = "fused_decode";
  using Args = FusedDecodeWithSplits;

  static void read(Inputs& in, Args& args) {
    read_fused_decode(in, args);
    args.num_splits = in.optional_integer();
    if (args.num_splits && (*args.num_splits < 1 || *args.num_splits > kMaxCount)) {
      in.refuse("num_splits", "None or 1 to " + std::to_string(kMaxCount), std::to_string(*args.num_splits));
    }
  }
  static void take(Inputs& in, Args& args) {
    args.out_fp8 = in.output("out_fp8");
    args.out_sf = in.output("out_sf");
    args.lse = in.output("lse");
    args.out_bf16 = in.optional_output("out_bf16");
  }
  static void allocate(Outputs& outputs, Args& args) {
    allocate_fused(outputs, args);
    args.lse = outputs.empty(DType::kFP32, {size_or_zero(args.q, 0), size_or_zero(args.q, 1)});
  }
};

void allocate_partials(Outputs& outputs, FusedDecodePartialsArgs& args) {
  const int64_t s_q = size_or_zero(args.q, 0);
  const int64_t h_q = size_or_zero(args.q, 1);
  const int64_t n = args.num_splits >= 1 && args.num_splits <= kMaxCount ? args.num_splits : 0;
  args.o_accum = outputs.empty(DType::kFP32, {n, s_q, h_q, kHeadSize});
  args.lse_accum = outputs.empty(DType::kFP32, {n, s_q, h_q});
}

struct FusedDecodePartials {
  static constexpr const char* kName = "fused_decode_partials";
  using Args = FusedDecodePartialsArgs;

  static void read(Inputs& in, Args& args) {
    read_fused_decode(in, args);
    args.num_splits = in.integer();
  }
  static void take(Inputs& in, Args& args) {
    args.o_accum = in.output("o_accum");
    args.lse_accum = in.output("lse_accum");
  }
  static void allocate(Outputs& outputs, Args& args) { allocate_partials(outputs, args); }
};

// ---- merging ------------------------------------------------------------------------------------

void read_combine(Inputs& in, CombineCommon& args) {
  args.out_partials = in.tensor("out_partials");
  args.lse_partials = in.tensor("lse_partials");
  args.attn_sink = in.optional_tensor("attn_sink");
  args.base2 = in.boolean();
}

struct CombinePartials {
  static constexpr const char* kName = "combine_partials";
  using Args = CombinePartialsArgs;

  static void read(Inputs& in, Args& args) { read_combine(in, args); }
  static void take(Inputs& in, Args& args) {
    args.out = in.output("out");
    args.lse = in.output("lse");
  }
  /// out is of the partials' type.
  static void allocate(Outputs& outputs, Args& args) {
    const TensorView& partials = args.out_partials;
    const DType type = partials.dtype();
    const bool narrow = type == DType::kBF16 || type == DType::kFP16;
    args.out =
        outputs.empty(narrow ? type : DType::kFP32,
                      {size_or_zero(partials, 1), size_or_zero(partials, 2), size_or_zero(partials, 3)});
    args.lse = outputs.empty(DType::kFP32, {size_or_zero(partials, 1), size_or_zero(partials, 2)});
  }
};

struct CombinePartialsFused {
  static constexpr const char* kName = "combine_partials_fused";
  using Args = CombinePartialsFusedArgs;

  static void read(Inputs& in, Args& args) {
    read_combine(in, args);
    args.n_groups = in.integer();
  }
  static void take(Inputs& in, Args& args) {
    args.out_fp8 = in.output("out_fp8");
    args.out_sf = in.output("out_sf");
    args.lse = in.output("lse");
  }
  static void allocate(Outputs& outputs, Args& args) {
    const int64_t s_q = size_or_zero(args.out_partials, 1);
    const int64_t h_q = size_or_zero(args.out_partials, 2);
    args.out_fp8 = allocate_out_fp8(outputs, s_q, h_q, args.n_groups);
    args.out_sf = allocate_out_sf(outputs, s_q, h_q, args.n_groups);
    args.lse = outputs.empty(DType::kFP32, {s_q, h_q});
  }
};

// ---- cache records ------------------------------------------------------------------------------

/// The library reads the page size off the pages; torch's callers name it as well.
struct QuantizeKvInPages : QuantizeKvArgs {
  int64_t page = 0;
};

struct QuantizeKv {
  static constexpr const char* kName = "quantize_kv";
  using Args = QuantizeKvInPages;

  static void read(Inputs& in, Args& args) {
    args.x = in.tensor("x");
    args.record = in.record("record");
    args.page = in.integer();
    if (args.page < 1 || args.page > kMaxCount) {
      in.refuse("page", "1 to " + std::to_string(kMaxCount), std::to_string(args.page));
    }
  }
  static void take(Inputs& in, Args& args) {
    args.pages = in.output("pages");
    if (args.pages.rank() > 1 && args.pages.size(1) != args.page) {
      in.refuse("pages", "of page " + std::to_string(args.page), to_string(args.pages));
    }
  }
  /// Blocks begin at multiples of 16 bytes, as every operator wants them.
  static void allocate(Outputs& outputs, Args& args) {
    const int64_t n = size_or_zero(args.x, 0);
    const int64_t d = size_or_zero(args.x, 1);
    const bool plain = args.record == Record::kBf16;
    const int64_t width = plain ? d : record_bytes(args.record, d);
    const int64_t unit = plain ? 8 : 16;
    const int64_t block_stride = (args.page * width + unit - 1) / unit * unit;
    args.pages = outputs.empty_strided(plain ? DType::kBF16 : DType::kUInt8,
                                       {n / args.page + (n % args.page != 0 ? 1 : 0), args.page, 1, width},
                                       {block_stride, width, width, 1});
  }
};

struct DequantizeKv {
  static constexpr const char* kName = "dequantize_kv";
  using Args = DequantizeKvArgs;

  static void read(Inputs& in, Args& args) {
    args.pages = in.tensor("pages");
    args.record = in.record("record");
  }
  static void take(Inputs& in, Args& args) { args.x = in.output("x"); }
  static void allocate(Outputs& outputs, Args& args) {
    const bool plain = args.record == Record::kBf16;
    args.x = outputs.empty(DType::kBF16, {size_or_zero(args.pages, 0) * size_or_zero(args.pages, 1),
                                          plain ? size_or_zero(args.pages, 3) : record_dim(args.record)});
  }
};

struct AppendKv {
  static constexpr const char* kName = "append_kv";
  using Args = AppendKvArgs;

  static void read(Inputs& in, Args& args) {
    args.kv = in.tensor("kv");
    args.cache = in.output("cache");
    args.slots = in.tensor("slots");
    args.record = in.optional_record("record");
  }
  static void take(Inputs&, Args&) {}
};

// ---- weights ------------------------------------------------------------------------------------

struct PermuteQBProj {
  static constexpr const char* kName = "permute_q_b_proj";
  using Args = PermuteQBProjArgs;

  static void read(Inputs& in, Args& args) {
    args.weight = in.tensor("weight");
    args.scales = in.tensor("scales");
    args.h_q = in.integer();
    args.d_q = in.integer();
  }
  static void take(Inputs& in, Args& args) {
    args.weight_out = in.output("weight_out");
    args.scales_out = in.output("scales_out");
  }
  static void allocate(Outputs& outputs, Args& args) {
    args.weight_out =
        outputs.empty(DType::kE4M3, {size_or_zero(args.weight, 0), size_or_zero(args.weight, 1)});
    args.scales_out = allocate_column_major(outputs, args.scales);
  }
};

struct PermuteWvProj {
  static constexpr const char* kName = "permute_wv_proj";
  using Args = PermuteWvProjArgs;

  static void read(Inputs& in, Args& args) {
    args.weight = in.tensor("weight");
    args.scales = in.tensor("scales");
    args.group_size = in.integer();
    args.d_o = in.integer();
  }
  static void take(Inputs& in, Args& args) {
    args.weight_out = in.output("weight_out");
    args.scales_out = in.output("scales_out");
  }
  static void allocate(Outputs& outputs, Args& args) {
    args.weight_out = allocate_like_3d(outputs, args.weight, DType::kE4M3);
    args.scales_out = allocate_like_3d(outputs, args.scales, DType::kInt32);
  }
};

// ---- calls --------------------------------------------------------------------------------------

void call(const FusedDecodeWithSplits& args, DeviceId id) {
  const FusedDecodeArgs& plain = args;
  if (!args.num_splits) return bindings::call(plain, id);
  check_call(plain, id);  // every refusal, under the operator's own name and before anything is written

  Outputs accumulators(id);
  FusedDecodePartialsArgs partials;
  static_cast<FusedCommon&>(partials) = args;
  static_cast<FusedDecodeCaches&>(partials) = args;
  partials.num_splits = *args.num_splits;
  allocate_partials(accumulators, partials);
  bindings::call(partials, id);

  const CombineCommon merged{partials.o_accum, partials.lse_accum, args.attn_sink, true};
  if (args.out_bf16) bindings::call(CombinePartialsArgs{merged, args.out_bf16, {}}, id);
  bindings::call(CombinePartialsFusedArgs{merged, args.n_groups, args.out_fp8, args.out_sf, args.lse}, id);
}

template <class DecodeArgs>
void call(const PlanArgs<DecodeArgs>& args, DeviceId id) {
  const DeviceScope scope(id);
  fill_decode_plan(args, device_for(id), scope.stream());
}

void call(const QuantizeKvInPages& args, DeviceId id) {
  const QuantizeKvArgs& plain = args;
  bindings::call(plain, id);
}

void noop(StableIValue* stack, uint64_t, uint64_t) {
  const OwnedTensor x(torch::stable::detail::to<AtenTensorHandle>(stack[0]));
}

void set_num_threads_boxed(StableIValue* stack, uint64_t num_inputs, uint64_t) {
  Inputs in("set_num_threads", stack, num_inputs);
  const int64_t threads = in.integer();
  in.finish();
  set_num_threads(threads);
}

void get_num_threads_boxed(StableIValue* stack, uint64_t, uint64_t) {
  stack[0] = torch::stable::detail::from(static_cast<int64_t>(num_threads()));
}

/// The same functions serve every device: the library's kernel tables know what runs where.
void implement_all(torch::stable::detail::StableLibrary& library) {
  implement<DenseDecode>(library);
  implement<SparseDecode>(library);
  implement<DenseDecodePlan>(library);
  implement<SparseDecodePlan>(library);
  implement<SparsePrefillFwd>(library);
  implement_no_grad<SparsePrefillFwdNoGrad>(library);
  implement<FusedPrefill>(library);
  implement<FusedDecode>(library);
  implement<FusedDecodePartials>(library);
  implement<CombinePartials>(library);
  implement<CombinePartialsFused>(library);
  implement<QuantizeKv>(library);
  implement<DequantizeKv>(library);
  implement<PermuteQBProj>(library);
  implement<PermuteWvProj>(library);
  implement_training(library);
  library.impl(AppendKv::kName, &call_out<AppendKv>);
  library.impl("noop", &noop);
}

}  // namespace
}  // namespace tilewise::bindings

STABLE_TORCH_LIBRARY(tilewise, library) {
  for (const char* schema : tilewise::bindings::native_schemas()) library.def(schema);
}

STABLE_TORCH_LIBRARY_IMPL(tilewise, CPU, library) { tilewise::bindings::implement_all(library); }

STABLE_TORCH_LIBRARY_IMPL(tilewise, CUDA, library) { tilewise::bindings::implement_all(library); }

STABLE_TORCH_LIBRARY_IMPL(tilewise, CompositeExplicitAutograd, library) {
  library.impl("set_num_threads", &tilewise::bindings::set_num_threads_boxed);
  library.impl("get_num_threads", &tilewise::bindings::get_num_threads_boxed);
}
