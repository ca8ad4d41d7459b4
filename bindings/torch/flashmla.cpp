// torch.ops._flashmla_C.* and torch.ops._flashmla_extension_C.*: FlashMLA's operators under its own schemas,
// on the same library calls. Python registers them through the entry points at the end, and only where nobody
// else has.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <exception>
#include <string_view>
#include <utility>

#include "allocate.h"
#include "call.h"
#include "flashmla_names.h"
#include "schemas.h"

namespace tilewise::bindings {
namespace {

constexpr int64_t kRopeSize = 64;
constexpr int64_t kChannelsOfScale = 32;

void must_be_head_size(Inputs& in, const char* name, int64_t d_v) { in.must_be(name, d_v, kHeadSize); }

/// The caller's tensor where given, which is then also what the operator returns, otherwise a new one.
template <class Allocate>
TensorView given_or(Outputs& outputs, const TensorView& given, AtenTensorHandle handle, Allocate allocate) {
  if (!given) return allocate();
  outputs.same(handle);
  return given;
}

// ---- decode -------------------------------------------------------------------------------------

constexpr Rename kSparseDecodeNames[] = {
    {"kv_cache", "kv"}, {"extra_cache", "extra_kv"}, {"softmax_scale", "sm_scale"}, {"out", "out_"}};

void sparse_decode_fwd(StableIValue* stack, uint64_t num_inputs, uint64_t) {
  Inputs in("sparse_decode_fwd", stack, num_inputs);
  SparseDecodeArgs args;
  args.q = in.tensor("q");
  args.kv_cache = in.tensor("kv");
  args.indices = in.tensor("indices");
  args.topk_length = in.optional_tensor("topk_length");
  args.attn_sink = in.optional_tensor("attn_sink");
  in.optional_tensor("tile_scheduler_metadata");
  const AtenTensorHandle metadata = in.last_handle();
  in.optional_tensor("num_splits");
  const AtenTensorHandle splits = in.last_handle();
  args.extra_cache = in.optional_tensor("extra_kv");
  args.extra_indices = in.optional_tensor("extra_indices");
  args.extra_topk_length = in.optional_tensor("extra_topk_length");
  must_be_head_size(in, "d_v", in.integer());
  args.softmax_scale = in.number();
  args.out = in.optional_output("out_");
  const AtenTensorHandle out = in.last_handle();
  in.finish();

  const int64_t b = size_or_zero(args.q, 0);
  const int64_t s_q = size_or_zero(args.q, 1);
  const int64_t h_q = size_or_zero(args.q, 2);
  Outputs outputs(in.device());
  args.out =
      given_or(outputs, args.out, out, [&] { return outputs.empty(DType::kBF16, {b, s_q, h_q, kHeadSize}); });
  args.lse = outputs.empty(DType::kFP32, {b, h_q, s_q});
  outputs.same(metadata);
  outputs.same(splits);
  renamed(in.op(), kSparseDecodeNames, [&] { call(args, in.device()); });
  outputs.give(stack, 2);
}

constexpr Rename kDenseDecodeNames[] = {{"k_cache", "kcache"},
                                        {"cache_seqlens", "seqlens_k"},
                                        {"d_v", "head_size_v"},
                                        {"causal", "is_causal"},
                                        {"out", "out_"}};

/// FlashMLA's packed output [b, h_kv, s_q * g, d_v], g = h_q / h_kv. Where that is also the operator's own
/// shape [b, s_q, h_q, d_v], the own one is meant.
bool is_packed(const DenseDecodeArgs& args) {
  if (args.out.rank() != 4 || args.q.rank() != 4 || args.k_cache.rank() != 4) return false;
  const int64_t h_kv = args.k_cache.size(2);
  if (h_kv < 1 || args.q.size(2) % h_kv != 0) return false;
  const std::array<int64_t, 4> packed = {args.q.size(0), h_kv, args.q.size(1) * (args.q.size(2) / h_kv),
                                         args.d_v};
  return std::equal(packed.begin(), packed.end(), args.out.shape().begin());
}

bool has_own_shape(const DenseDecodeArgs& args) {
  return args.out.rank() == 4 && args.q.rank() == 4 && args.out.size(0) == args.q.size(0) &&
         args.out.size(1) == args.q.size(1) && args.out.size(2) == args.q.size(2);
}

/// Copies [b, s_q, h_kv, g, d_v] to [b, h_kv, s_q, g, d_v].
void pack(AtenTensorHandle from, AtenTensorHandle to, const DenseDecodeArgs& args) {
  const int64_t s_q = args.q.size(1);
  const int64_t h_kv = args.k_cache.size(2);
  const int64_t g = args.q.size(2) / h_kv;
  const int64_t d = args.d_v;
  const int64_t shape[] = {args.q.size(0), h_kv, s_q, g, d};
  const int64_t from_strides[] = {s_q * h_kv * g * d, g * d, h_kv * g * d, d, 1};
  const int64_t to_strides[] = {s_q * h_kv * g * d, s_q * g * d, g * d, d, 1};
  AtenTensorHandle source = nullptr;
  check_torch(aoti_torch__reinterpret_tensor(from, 5, shape, from_strides, 0, &source), "reinterpret_tensor");
  const OwnedTensor source_owner(source);
  AtenTensorHandle target = nullptr;
  check_torch(aoti_torch__reinterpret_tensor(to, 5, shape, to_strides, 0, &target), "reinterpret_tensor");
  const OwnedTensor target_owner(target);
  check_torch(aoti_torch_copy_(target, source, 0), "copy_");
}

/// Runs into out_ whichever of its two shapes it has.
void run_dense_decode(DenseDecodeArgs& args, AtenTensorHandle out, const Inputs& in) {
  const auto run = [&] { renamed(in.op(), kDenseDecodeNames, [&] { call(args, in.device()); }); };
  if (args.out.rank() == 4 && !args.out.is_contiguous()) {
    refuse_strides(in.op(), "out_", args.out);
  }
  if (has_own_shape(args) || !is_packed(args)) return run();
  const TensorView given = std::exchange(args.out, {});
  const int64_t h_kv = args.k_cache.size(2);
  const bool same_memory = h_kv == 1 || args.q.size(1) == 1;
  if (same_memory) {
    const int64_t shape[] = {args.q.size(0), args.q.size(1), args.q.size(2), args.d_v};
    const int64_t strides[] = {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1};
    args.out = TensorView(given.data(), given.dtype(), shape, strides, given.device());
    return run();
  }
  Outputs unpacked(in.device());
  args.out = allocate_dense_out(unpacked, args);
  if (given.dtype() != args.out.dtype()) {
    args.out = given;  // refused for its type
    return run();
  }
  run();
  pack(unpacked.handle(0), out, args);
}

void dense_decode_fwd(StableIValue* stack, uint64_t num_inputs, uint64_t) {
  Inputs in("dense_decode_fwd", stack, num_inputs);
  DenseDecodeArgs args;
  args.q = in.tensor("q");
  args.k_cache = in.tensor("kcache");
  args.d_v = in.integer();
  args.cache_seqlens = in.tensor("seqlens_k");
  args.block_table = in.tensor("block_table");
  args.softmax_scale = in.number();
  args.causal = in.boolean();
  in.optional_tensor("tile_scheduler_metadata");
  const AtenTensorHandle metadata = in.last_handle();
  in.optional_tensor("num_splits");
  const AtenTensorHandle splits = in.last_handle();
  args.out = in.optional_output("out_");
  const AtenTensorHandle out = in.last_handle();
  in.finish();

  Outputs outputs(in.device());
  args.out = given_or(outputs, args.out, out, [&] { return allocate_dense_out(outputs, args); });
  args.lse = outputs.empty(DType::kFP32,
                           {size_or_zero(args.q, 0), size_or_zero(args.q, 2), size_or_zero(args.q, 1)});
  outputs.same(metadata);
  outputs.same(splits);
  run_dense_decode(args, out, in);
  outputs.give(stack, 2);
}

constexpr Rename kDenseFp8Names[] = {{"d_v", "head_dim_v"}};

void fwd_kvcache_mla_fp8(StableIValue* stack, uint64_t num_inputs, uint64_t) {
  Inputs in("fwd_kvcache_mla_fp8", stack, num_inputs);
  DenseDecodeArgs args;
  args.q = in.tensor("q");
  args.k_cache = in.tensor("k_cache");
  args.d_v = in.integer();
  args.cache_seqlens = in.tensor("cache_seqlens");
  args.block_table = in.tensor("block_table");
  args.softmax_scale = in.number();
  args.causal = in.boolean();
  in.tensor("tile_scheduler_metadata");
  in.tensor("num_splits");
  args.descale_q = in.optional_tensor("descale_q");
  args.descale_k = in.optional_tensor("descale_k");
  in.finish();

  Outputs outputs(in.device());
  args.out = allocate_dense_out(outputs, args);
  args.lse = outputs.empty(DType::kFP32,
                           {size_or_zero(args.q, 0), size_or_zero(args.q, 2), size_or_zero(args.q, 1)});
  renamed(in.op(), kDenseFp8Names, [&] { call(args, in.device()); });
  outputs.give_list(stack);
}

/// The library plans by itself: one worker that takes every request whole.
void get_mla_decoding_metadata_dense_fp8(StableIValue* stack, uint64_t num_inputs, uint64_t) {
  constexpr int64_t kWordsOfWorker = 8;
  Inputs in("get_mla_decoding_metadata_dense_fp8", stack, num_inputs);
  const TensorView lengths = in.tensor("seqlens_k");
  in.integer();
  in.integer();
  if (lengths.dtype() != DType::kInt32 || lengths.rank() != 1) {
    in.refuse("seqlens_k", "int32 [b]", to_string(lengths));
  }
  in.finish();
  Outputs outputs(in.device());
  outputs.empty(DType::kInt32, {1, kWordsOfWorker});
  outputs.empty(DType::kInt32, {lengths.size(0) + 1});
  check_torch(aoti_torch_zero_(outputs.handle(0)), "zero_");
  check_torch(aoti_torch_zero_(outputs.handle(1)), "zero_");
  outputs.give_list(stack);
}

// ---- prefill ------------------------------------------------------------------------------------

constexpr Rename kSparsePrefillNames[] = {{"softmax_scale", "sm_scale"}, {"out", "out_"}};

void sparse_prefill_fwd(StableIValue* stack, uint64_t num_inputs, uint64_t) {
  Inputs in("sparse_prefill_fwd", stack, num_inputs);
  SparsePrefillFwdArgs args;
  args.q = in.tensor("q");
  args.kv = in.tensor("kv");
  args.indices = in.tensor("indices");
  args.softmax_scale = in.number();
  args.d_v = in.integer();
  args.attn_sink = in.optional_tensor("attn_sink");
  args.topk_length = in.optional_tensor("topk_length");
  args.out = in.optional_output("out_");
  const AtenTensorHandle out = in.last_handle();
  in.finish();

  const int64_t s_q = size_or_zero(args.q, 0);
  const int64_t h_q = size_or_zero(args.q, 1);
  Outputs outputs(in.device());
  args.out = given_or(outputs, args.out, out, [&] {
    return outputs.empty(DType::kBF16, {s_q, h_q, std::clamp<int64_t>(args.d_v, 0, kHeadSize)});
  });
  args.max_logits = outputs.empty(DType::kFP32, {s_q, h_q});
  args.lse = outputs.empty(DType::kFP32, {s_q, h_q});
  renamed(in.op(), kSparsePrefillNames, [&] { call(args, in.device()); });
  outputs.give_list(stack);
}

constexpr Rename kDensePrefillNames[] = {{"cu_seqlens_q", "cumulative_seqlen_q"},
                                         {"cu_seqlens_k", "cumulative_seqlen_kv"},
                                         {"max_seqlen_k", "max_seqlen_kv"},
                                         {"d_out", "d_o"},
                                         {"out", "o"}};

/// The settings at the end of both operators' arguments. Lengths rule whatever is_varlen says.
void read_dense_prefill_settings(Inputs& in, VarlenCommon& args) {
  const int64_t mask_mode_code = in.integer();
  if (mask_mode_code != 0 && mask_mode_code != 1) {
    in.refuse("mask_mode_code", "0 (no mask) or 1 (causal)", std::to_string(mask_mode_code));
  }
  args.causal = mask_mode_code == 1;
  args.softmax_scale = in.number();
  args.max_seqlen_q = in.integer();
  args.max_seqlen_k = in.integer();
  in.boolean();
}

void dense_prefill_fwd_boxed(StableIValue* stack, uint64_t num_inputs, uint64_t) {
  Inputs in("dense_prefill_fwd", stack, num_inputs);
  DensePrefillFwdArgs args;
  in.tensor("workspace_buffer");
  args.q = in.tensor("q");
  args.k = in.tensor("k");
  args.v = in.tensor("v");
  args.cu_seqlens_q = in.tensor("cumulative_seqlen_q");
  args.cu_seqlens_k = in.tensor("cumulative_seqlen_kv");
  args.out = in.output("o");
  args.lse = in.output("lse");
  read_dense_prefill_settings(in, args);
  in.finish();
  renamed(in.op(), kDensePrefillNames, [&] { call(args, in.device()); });
}

void dense_prefill_bwd_boxed(StableIValue* stack, uint64_t num_inputs, uint64_t) {
  Inputs in("dense_prefill_bwd", stack, num_inputs);
  DensePrefillBwdArgs args;
  in.output("workspace_buffer");
  args.d_out = in.tensor("d_o");
  args.q = in.tensor("q");
  args.k = in.tensor("k");
  args.v = in.tensor("v");
  args.out = in.tensor("o");
  args.lse = in.tensor("lse");
  args.cu_seqlens_q = in.tensor("cumulative_seqlen_q");
  args.cu_seqlens_k = in.tensor("cumulative_seqlen_kv");
  args.dq = in.output("dq");
  args.dk = in.output("dk");
  args.dv = in.output("dv");
  read_dense_prefill_settings(in, args);
  in.finish();
  renamed(in.op(), kDensePrefillNames, [&] { call(args, in.device()); });
}

// ---- fused --------------------------------------------------------------------------------------

constexpr Rename kFusedNames[] = {{"kv_cache", "kv"},
                                  {"extra_cache", "extra_kv"},
                                  {"softmax_scale", "sm_scale"},
                                  {"q_norm_eps", "rms_norm_eps"},
                                  {"n_groups", "n_wv_group"},
                                  {"num_splits", "mega_num_splits"},
                                  {"o_accum", "mega_o_accum"},
                                  {"lse_accum", "mega_lse_accum"}};

struct Fp8Handles {
  AtenTensorHandle out_fp8 = nullptr;
  AtenTensorHandle out_sf = nullptr;
};

/// The eleven settings and the two outputs that both fused operators have.
template <class Args>
Fp8Handles read_fused_settings(Inputs& in, Args& args) {
  const bool norm = in.boolean();
  const float eps = in.number();
  if (norm) args.q_norm_eps = eps;
  args.token_positions = in.tensor("token_positions");
  in.must_be_bool("is_rope_neox_style", in.boolean(), false);
  in.must_be("rope_dim", in.integer(), kRopeSize);
  args.cos_sin_cache = in.tensor("cos_sin_cache");
  args.n_groups = in.integer();
  in.must_be("num_per_channels", in.integer(), kChannelsOfScale);
  for (const char* name : {"use_tma_aligned_col_major_sf", "round_sf", "use_packed_ue8m0"}) {
    in.must_be_bool(name, in.boolean(), true);
  }
  Fp8Handles handles;
  args.out_fp8 = in.optional_output("out_fp8");
  handles.out_fp8 = in.last_handle();
  args.out_sf = in.optional_output("out_sf");
  handles.out_sf = in.last_handle();
  return handles;
}

template <class Args>
void complete_fused(Outputs& outputs, Args& args, const Fp8Handles& handles) {
  const int64_t s_q = size_or_zero(args.q, 0);
  const int64_t h_q = size_or_zero(args.q, 1);
  args.out_fp8 = given_or(outputs, args.out_fp8, handles.out_fp8,
                          [&] { return allocate_out_fp8(outputs, s_q, h_q, args.n_groups); });
  args.out_sf = given_or(outputs, args.out_sf, handles.out_sf,
                         [&] { return allocate_out_sf(outputs, s_q, h_q, args.n_groups); });
}

void fused_fwd(StableIValue* stack, uint64_t num_inputs, uint64_t) {
  Inputs in("fused_norm_rope_attn_rope_cast_fwd", stack, num_inputs);
  FusedPrefillArgs args;
  args.q = in.tensor("q");
  args.kv = in.tensor("kv");
  args.indices = in.tensor("indices");
  args.softmax_scale = in.number();
  must_be_head_size(in, "d_v", in.integer());
  args.attn_sink = in.optional_tensor("attn_sink");
  args.topk_length = in.optional_tensor("topk_length");
  const Fp8Handles handles = read_fused_settings(in, args);
  in.finish();

  Outputs outputs(in.device());
  complete_fused(outputs, args, handles);
  args.max_logits = outputs.empty(DType::kFP32, {size_or_zero(args.q, 0), size_or_zero(args.q, 1)});
  args.lse = outputs.empty(DType::kFP32, {size_or_zero(args.q, 0), size_or_zero(args.q, 1)});
  renamed(in.op(), kFusedNames, [&] { call(args, in.device()); });
  outputs.give_list(stack);
}

struct MegaSplits {
  int64_t num_splits = 1;
  TensorView o_accum;
  TensorView lse_accum;
};

MegaSplits read_mega_splits(Inputs& in) {
  MegaSplits mega;
  mega.num_splits = in.integer();
  mega.o_accum = in.optional_output("mega_o_accum");
  mega.lse_accum = in.optional_output("mega_lse_accum");
  if (mega.o_accum.present() != mega.lse_accum.present()) {
    const bool has_o = mega.o_accum.present();
    in.refuse(has_o ? "mega_lse_accum" : "mega_o_accum",
              has_o ? "given with mega_o_accum" : "given with mega_lse_accum", "nothing");
  }
  if (!mega.o_accum && mega.num_splits != 1) {
    in.refuse("mega_num_splits", "1 without mega_o_accum", std::to_string(mega.num_splits));
  }
  return mega;
}

void fused_decode(StableIValue* stack, uint64_t num_inputs, uint64_t) {
  Inputs in("fused_norm_rope_attn_rope_cast_decode", stack, num_inputs);
  FusedDecodeArgs args;
  args.q = in.tensor("q");
  args.kv_cache = in.tensor("kv");
  args.indices = in.tensor("indices");
  args.softmax_scale = in.number();
  must_be_head_size(in, "d_v", in.integer());
  args.attn_sink = in.optional_tensor("attn_sink");
  args.topk_length = in.optional_tensor("topk_length");
  args.extra_cache = in.optional_tensor("extra_kv");
  args.extra_indices = in.optional_tensor("extra_indices");
  args.extra_topk_length = in.optional_tensor("extra_topk_length");
  const Fp8Handles handles = read_fused_settings(in, args);
  const MegaSplits mega = read_mega_splits(in);
  in.finish();

  Outputs outputs(in.device());
  complete_fused(outputs, args, handles);
  args.lse = outputs.empty(DType::kFP32, {size_or_zero(args.q, 0), size_or_zero(args.q, 1)});
  renamed(in.op(), kFusedNames, [&] {
    if (!mega.o_accum) return call(args, in.device());
    check_call(args,
               in.device());  // the outputs are returned unwritten, but a wrong one is refused all the same
    FusedDecodePartialsArgs partials;
    static_cast<FusedCommon&>(partials) = args;
    static_cast<FusedDecodeCaches&>(partials) = args;
    partials.num_splits = mega.num_splits;
    partials.o_accum = mega.o_accum;
    partials.lse_accum = mega.lse_accum;
    call(partials, in.device());
  });
  outputs.give_list(stack);
}

// ---- weights ------------------------------------------------------------------------------------

constexpr Rename kPermuteQNames[] = {{"weight", "q_b_proj"}, {"scales", "scale_factors"}};

void permute_q_b_proj_boxed(StableIValue* stack, uint64_t num_inputs, uint64_t) {
  Inputs in("permute_q_b_proj", stack, num_inputs);
  PermuteQBProjArgs args;
  args.weight = in.tensor("q_b_proj");
  args.scales = in.tensor("scale_factors");
  args.h_q = in.integer();
  args.d_q = in.integer();
  in.finish();
  Outputs outputs(in.device());
  args.weight_out = outputs.empty(DType::kE4M3, {size_or_zero(args.weight, 0), size_or_zero(args.weight, 1)});
  args.scales_out = allocate_column_major(outputs, args.scales);
  renamed(in.op(), kPermuteQNames, [&] { call(args, in.device()); });
  outputs.give_list(stack);
}

constexpr Rename kPermuteWvNames[] = {
    {"weight", "wv_proj"}, {"scales", "scale_factors"}, {"group_size", "wv_group_size"}};

void permute_wv_proj_boxed(StableIValue* stack, uint64_t num_inputs, uint64_t) {
  Inputs in("permute_wv_proj", stack, num_inputs);
  PermuteWvProjArgs args;
  args.weight = in.tensor("wv_proj");
  args.scales = in.tensor("scale_factors");
  args.group_size = in.integer();
  args.d_o = in.integer();
  in.finish();
  Outputs outputs(in.device());
  args.weight_out = allocate_like_3d(outputs, args.weight, DType::kE4M3);
  args.scales_out = allocate_like_3d(outputs, args.scales, DType::kInt32);
  renamed(in.op(), kPermuteWvNames, [&] { call(args, in.device()); });
  outputs.give_list(stack);
}

// ---- registration -------------------------------------------------------------------------------

using Library = torch::stable::detail::StableLibrary;

struct Implementation {
  const char* name;
  void (*function)(StableIValue*, uint64_t, uint64_t);
};

constexpr Implementation kFlashmla[] = {
    {"sparse_decode_fwd", &sparse_decode_fwd},
    {"dense_decode_fwd", &dense_decode_fwd},
    {"sparse_prefill_fwd", &sparse_prefill_fwd},
    {"dense_prefill_fwd", &dense_prefill_fwd_boxed},
    {"dense_prefill_bwd", &dense_prefill_bwd_boxed},
    {"fused_norm_rope_attn_rope_cast_fwd", &fused_fwd},
    {"fused_norm_rope_attn_rope_cast_decode", &fused_decode},
    {"permute_q_b_proj", &permute_q_b_proj_boxed},
    {"permute_wv_proj", &permute_wv_proj_boxed},
};
constexpr Implementation kFlashmlaExtension[] = {
    {"fwd_kvcache_mla_fp8", &fwd_kvcache_mla_fp8},
    {"get_mla_decoding_metadata_dense_fp8", &get_mla_decoding_metadata_dense_fp8},
};

/// A namespace that stays registered until the process ends. A fragment: others may add to it.
void register_namespace(const char* name, std::span<const char* const> schemas,
                        std::span<const Implementation> implementations) {
  auto* definitions = new Library(Library::Kind::FRAGMENT, name, nullptr, __FILE__, __LINE__);
  for (const char* schema : schemas) definitions->def(schema);
  for (const char* key : {"CPU", "CUDA"}) {
    auto* library = new Library(Library::Kind::IMPL, name, key, __FILE__, __LINE__);
    for (const auto& [op, function] : implementations) library->impl(op, function);
  }
}

}  // namespace
}  // namespace tilewise::bindings

extern "C" {

/// Registers the namespace `name`, "_flashmla_C" or "_flashmla_extension_C". 0, or 1 when torch refused.
__attribute__((visibility("default"))) int tilewise_torch_register_flashmla(const char* name) {
  using namespace tilewise::bindings;
  try {
    if (std::string_view(name) == "_flashmla_C") {
      register_namespace("_flashmla_C", flashmla_schemas(), kFlashmla);
    } else if (std::string_view(name) == "_flashmla_extension_C") {
      register_namespace("_flashmla_extension_C", flashmla_extension_schemas(), kFlashmlaExtension);
    } else {
      return 1;
    }
    return 0;
  } catch (const std::exception&) {
    return 1;
  }
}

}  // extern "C"
