// A valid small call of every operator, for tests that spoil it in one way.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "tilewise/tilewise.h"

namespace tilewise::errors {

/// The buffers of a call. Each has room behind it, for views that a test stretches or that another tensor's
/// shape makes larger.
class Memory {
 public:
  TensorView input(DType type, std::initializer_list<int64_t> shape) { return block(type, shape, false); }
  TensorView output(DType type, std::initializer_list<int64_t> shape) { return block(type, shape, true); }

  bool outputs_untouched() const {
    return std::all_of(blocks_.begin(), blocks_.end(), [](const Block& block) {
      const unsigned char* bytes = block.data.get();
      return !block.output ||
             std::all_of(bytes, bytes + block.bytes, [](unsigned char b) { return b == kFill; });
    });
  }

 private:
  static constexpr unsigned char kFill = 0xA5;
  static constexpr size_t kRoom = 1 << 17;

  struct Free {
    void operator()(unsigned char* p) const { std::free(p); }
  };
  struct Block {
    std::unique_ptr<unsigned char, Free> data;
    size_t bytes;
    bool output;
  };

  TensorView block(DType type, std::initializer_list<int64_t> shape, bool output) {
    const TensorView sizes(nullptr, type, shape);
    const size_t bytes = (static_cast<size_t>(sizes.numel() * size_of(type)) + kRoom + 63) / 64 * 64;
    auto* data = static_cast<unsigned char*>(std::aligned_alloc(64, bytes));
    if (data == nullptr) throw std::bad_alloc();
    std::memset(data, output ? kFill : 0, bytes);
    blocks_.push_back({std::unique_ptr<unsigned char, Free>(data), bytes, output});
    return {data, type, shape};
  }

  std::vector<Block> blocks_;
};

enum class Strides {
  kRows,  // last dimension contiguous; small matrices: the others whole 16 bytes
  kContiguous,
  kPages,  // contiguous inside a page, block stride free
  kOwn,    // tested by the operator's own rows
};

/// What the contract says of one tensor argument; listed in the order in which the operator looks at them.
template <class Args>
struct Argument {
  const char* name;
  TensorView Args::* view;
  std::string expected;  // type and shape, as in the error text
  Strides strides = Strides::kRows;
  bool output = false;
  const char* missing = "given";  // the text when it is left out; nullptr: it may be
};

template <class Args>
struct Call {
  const char* op;
  Args args{};
  Memory memory{};
  std::vector<Argument<Args>> arguments{};
};

inline constexpr bool kOutput = true;

inline Call<DenseDecodeArgs> dense_decode_call() {
  Call<DenseDecodeArgs> call{"dense_decode"};
  Memory& m = call.memory;
  DenseDecodeArgs& a = call.args;
  a.q = m.input(DType::kBF16, {2, 3, 4, 576});
  a.k_cache = m.input(DType::kBF16, {3, 5, 2, 576});
  a.block_table = m.input(DType::kInt32, {2, 2});
  a.cache_seqlens = m.input(DType::kInt32, {2});
  a.attn_sink = m.input(DType::kFP32, {4});
  a.out = m.output(DType::kBF16, {2, 3, 4, 512});
  a.lse = m.output(DType::kFP32, {2, 4, 3});
  using A = DenseDecodeArgs;
  call.arguments = {
      {"q", &A::q, "bfloat16, float16 or float8_e4m3fn [b, s_q, h_q, 576 or 512]"},
      {"k_cache", &A::k_cache, "bfloat16 [num_blocks, page, h_kv, 576]"},
      {"block_table", &A::block_table, "int32 [2, max_blocks]"},
      {"cache_seqlens", &A::cache_seqlens, "int32 [2]"},
      {"attn_sink", &A::attn_sink, "float32 [4]", Strides::kRows, false, nullptr},
      {"out", &A::out, "bfloat16 [2, 3, 4, 512]", Strides::kRows, kOutput},
      {"lse", &A::lse, "float32 [2, 4, 3]", Strides::kRows, kOutput, nullptr},
  };
  return call;
}

/// The same with float8_e4m3fn queries and keys.
inline Call<DenseDecodeArgs> dense_decode_fp8_call() {
  Call<DenseDecodeArgs> call = dense_decode_call();
  Memory& m = call.memory;
  call.args.q = m.input(DType::kE4M3, {2, 3, 4, 576});
  call.args.k_cache = m.input(DType::kE4M3, {3, 5, 2, 576});
  call.args.descale_q = m.input(DType::kFP32, {1});
  call.args.descale_k = m.input(DType::kFP32, {1});
  using A = DenseDecodeArgs;
  call.arguments = {
      {"k_cache", &A::k_cache, "float8_e4m3fn [num_blocks, page, h_kv, 576]"},
      {"descale_q", &A::descale_q, "float32 [1]", Strides::kRows, false, "given where q is float8_e4m3fn"},
      {"descale_k", &A::descale_k, "float32 [1]", Strides::kRows, false, "given where q is float8_e4m3fn"},
      {"out", &A::out, "bfloat16 [2, 3, 4, 512]", Strides::kRows, kOutput},
  };
  return call;
}

/// The expectation of a cache of an 8-bit record, and a cache of three pages of four tokens.
inline std::string bytes_expected(Record record, int64_t d) {
  return "uint8, int8 or float8_e4m3fn [num_blocks, page, 1, " + std::to_string(record_bytes(record, d)) +
         "] for record " + record_name(record);
}
inline TensorView pages_of(Memory& m, Record record, int64_t d) {
  if (record == Record::kBf16) return m.input(DType::kBF16, {3, 4, 1, d});
  return m.input(DType::kUInt8, {3, 4, 1, record_bytes(record, d)});
}

/// Both caches, every option. The extra record must go with the main one.
inline Call<SparseDecodeArgs> sparse_decode_call(Record main = Record::kV41Fp8,
                                                 Record extra = Record::kV41Fp4, int64_t d = 512) {
  Call<SparseDecodeArgs> call{"sparse_decode"};
  Memory& m = call.memory;
  SparseDecodeArgs& a = call.args;
  a.q = m.input(DType::kBF16, {2, 3, 4, d});
  a.kv_cache = pages_of(m, main, d);
  a.record = main;
  a.indices = m.input(DType::kInt32, {2, 3, 5});
  a.topk_length = m.input(DType::kInt32, {2});
  a.extra_cache = pages_of(m, extra, d);
  a.extra_record = extra;
  a.extra_indices = m.input(DType::kInt32, {2, 3, 7});
  a.extra_topk_length = m.input(DType::kInt32, {2});
  a.attn_sink = m.input(DType::kFP32, {4});
  a.out = m.output(DType::kBF16, {2, 3, 4, 512});
  a.lse = m.output(DType::kFP32, {2, 4, 3});
  using A = SparseDecodeArgs;
  call.arguments = {
      {"q", &A::q, "bfloat16 [b, s_q, h_q, 576 or 512]"},
      {"kv_cache", &A::kv_cache, bytes_expected(main, d), Strides::kPages},
      {"indices", &A::indices, "int32 [2, 3, topk]"},
      {"topk_length", &A::topk_length, "int32 [2]", Strides::kRows, false, nullptr},
      {"extra_cache", &A::extra_cache, bytes_expected(extra, d), Strides::kPages, false,
       "given with extra_indices"},
      {"extra_indices", &A::extra_indices, "int32 [2, 3, extra_topk]", Strides::kRows, false,
       "given with extra_cache"},
      {"extra_topk_length", &A::extra_topk_length, "int32 [2]", Strides::kRows, false, nullptr},
      {"attn_sink", &A::attn_sink, "float32 [4]", Strides::kRows, false, nullptr},
      {"out", &A::out, "bfloat16 [2, 3, 4, 512]", Strides::kRows, kOutput},
      {"lse", &A::lse, "float32 [2, 4, 3]", Strides::kRows, kOutput, nullptr},
  };
  return call;
}

inline Call<SparsePrefillFwdArgs> sparse_prefill_call() {
  Call<SparsePrefillFwdArgs> call{"sparse_prefill_fwd"};
  Memory& m = call.memory;
  SparsePrefillFwdArgs& a = call.args;
  a.q = m.input(DType::kBF16, {3, 4, 576});
  a.kv = m.input(DType::kBF16, {6, 1, 576});
  a.indices = m.input(DType::kInt32, {3, 1, 5});
  a.topk_length = m.input(DType::kInt32, {3});
  a.sink_bias = m.input(DType::kFP32, {4});
  a.indexer_topk = 2;
  a.lse_indexer = m.output(DType::kFP32, {3, 4});
  a.out = m.output(DType::kBF16, {3, 4, 512});
  a.max_logits = m.output(DType::kFP32, {3, 4});
  a.lse = m.output(DType::kFP32, {3, 4});
  using A = SparsePrefillFwdArgs;
  call.arguments = {
      {"q", &A::q, "bfloat16 [s_q, h_q, 576 or 512]"},
      {"kv", &A::kv, "bfloat16 [s_kv, 1, 576]"},
      {"indices", &A::indices, "int32 [3, 1, topk]"},
      {"topk_length", &A::topk_length, "int32 [3]", Strides::kRows, false, nullptr},
      {"sink_bias", &A::sink_bias, "float32, float16 or bfloat16 [4]", Strides::kRows, false, nullptr},
      {"lse_indexer", &A::lse_indexer, "float32 [3, 4]", Strides::kRows, kOutput,
       "given where indexer_topk is above 0"},
      {"out", &A::out, "bfloat16 [3, 4, 512]", Strides::kRows, kOutput},
      {"max_logits", &A::max_logits, "float32 [3, 4]", Strides::kRows, kOutput, nullptr},
      {"lse", &A::lse, "float32 [3, 4]", Strides::kRows, kOutput, nullptr},
  };
  return call;
}

/// attn_sink in place of sink_bias, no indexer.
inline Call<SparsePrefillFwdArgs> sparse_prefill_sink_call() {
  Call<SparsePrefillFwdArgs> call = sparse_prefill_call();
  call.args.sink_bias = {};
  call.args.indexer_topk = 0;
  call.args.lse_indexer = {};
  call.args.attn_sink = call.memory.input(DType::kFP32, {4});
  using A = SparsePrefillFwdArgs;
  call.arguments = {{"attn_sink", &A::attn_sink, "float32 [4]", Strides::kRows, false, nullptr},
                    {"out", &A::out, "bfloat16 [3, 4, 512]", Strides::kRows, kOutput}};
  return call;
}

/// What the fused operators share: four heads in two groups, three tokens, every option.
inline void fill_common(Memory& m, FusedCommon& a) {
  a.q = m.input(DType::kBF16, {3, 4, 512});
  a.token_positions = m.input(DType::kInt32, {3});
  a.cos_sin_cache = m.input(DType::kFP32, {9, 64});
  a.n_groups = 2;
  a.q_norm_eps = 1e-6f;
  a.topk_length = m.input(DType::kInt32, {3});
  a.attn_sink = m.input(DType::kFP32, {4});
}
template <class A>
std::vector<Argument<A>> common_arguments() {
  return {
      {"q", &A::q, "bfloat16 [s_q, h_q, 512]", Strides::kOwn},
      {"token_positions", &A::token_positions, "int32 [3]"},
      {"cos_sin_cache", &A::cos_sin_cache, "float32 [max_pos, 64]"},
      {"attn_sink", &A::attn_sink, "float32 [4]", Strides::kRows, false, nullptr},
  };
}
template <class A>
void append(std::vector<Argument<A>>& to, std::vector<Argument<A>> more) {
  to.insert(to.end(), more.begin(), more.end());
}

/// The token dimension of out_sf is contiguous.
inline TensorView sf_view(const TensorView& memory, int64_t s_q, int64_t groups, int64_t columns,
                          int64_t pitch) {
  const int64_t shape[] = {s_q, groups, columns};
  const int64_t strides[] = {1, columns * pitch, pitch};
  return {memory.data(), DType::kInt32, shape, strides};
}
inline void fill_outputs(Memory& m, FusedOutputs& a) {
  a.out_fp8 = m.output(DType::kE4M3, {3, 2, 1024});
  a.out_sf = sf_view(m.output(DType::kInt32, {2, 8, 4}), 3, 2, 8, 4);
  a.out_bf16 = m.output(DType::kBF16, {3, 4, 512});
  a.lse = m.output(DType::kFP32, {3, 4});
}
template <class A>
std::vector<Argument<A>> output_arguments() {
  return {
      {"out_fp8", &A::out_fp8, "float8_e4m3fn [3, 2, 1024]", Strides::kContiguous, kOutput,
       "given with out_sf"},
      {"out_sf", &A::out_sf, "int32 [3, 2, 8]", Strides::kOwn, kOutput, "given with out_fp8"},
      {"out_bf16", &A::out_bf16, "bfloat16 [3, 4, 512]", Strides::kRows, kOutput, nullptr},
      {"lse", &A::lse, "float32 [3, 4]", Strides::kRows, kOutput, nullptr},
  };
}

inline Call<FusedPrefillArgs> fused_prefill_call() {
  Call<FusedPrefillArgs> call{"fused_prefill"};
  Memory& m = call.memory;
  FusedPrefillArgs& a = call.args;
  fill_common(m, a);
  a.kv = m.input(DType::kBF16, {6, 1, 512});
  a.indices = m.input(DType::kInt32, {3, 1, 5});
  fill_outputs(m, a);
  a.max_logits = m.output(DType::kFP32, {3, 4});
  using A = FusedPrefillArgs;
  call.arguments = common_arguments<A>();
  append<A>(call.arguments, {
                                {"kv", &A::kv, "bfloat16 [s_kv, 1, 512]"},
                                {"indices", &A::indices, "int32 [3, 1, topk]"},
                                {"topk_length", &A::topk_length, "int32 [3]", Strides::kRows, false, nullptr},
                            });
  append<A>(call.arguments, output_arguments<A>());
  call.arguments.insert(call.arguments.end() - 1,
                        {"max_logits", &A::max_logits, "float32 [3, 4]", Strides::kRows, kOutput, nullptr});
  return call;
}

inline void fill_caches(Memory& m, FusedDecodeCaches& a) {
  a.kv_cache = pages_of(m, Record::kV4Fp8, 512);
  a.indices = m.input(DType::kInt32, {3, 5});
  a.extra_cache = pages_of(m, Record::kV41MainFp4, 512);
  a.extra_indices = m.input(DType::kInt32, {3, 7});
  a.extra_topk_length = m.input(DType::kInt32, {3});
}
template <class A>
std::vector<Argument<A>> cache_arguments() {
  return {
      {"kv_cache", &A::kv_cache, bytes_expected(Record::kV4Fp8, 512), Strides::kPages},
      {"indices", &A::indices, "int32 [3, topk]"},
      {"topk_length", &A::topk_length, "int32 [3]", Strides::kRows, false, nullptr},
      {"extra_cache", &A::extra_cache, bytes_expected(Record::kV41MainFp4, 512), Strides::kPages, false,
       "given with extra_indices"},
      {"extra_indices", &A::extra_indices, "int32 [3, extra_topk]", Strides::kRows, false,
       "given with extra_cache"},
      {"extra_topk_length", &A::extra_topk_length, "int32 [3]", Strides::kRows, false, nullptr},
  };
}

inline Call<FusedDecodeArgs> fused_decode_call() {
  Call<FusedDecodeArgs> call{"fused_decode"};
  Memory& m = call.memory;
  fill_common(m, call.args);
  fill_caches(m, call.args);
  fill_outputs(m, call.args);
  // Named, so that a cache of a wrong width is refused against its record.
  call.args.record = Record::kV4Fp8;
  call.args.extra_record = Record::kV41MainFp4;
  using A = FusedDecodeArgs;
  call.arguments = common_arguments<A>();
  append<A>(call.arguments, cache_arguments<A>());
  append<A>(call.arguments, output_arguments<A>());
  return call;
}

inline Call<FusedDecodePartialsArgs> fused_decode_partials_call() {
  Call<FusedDecodePartialsArgs> call{"fused_decode_partials"};
  Memory& m = call.memory;
  FusedDecodePartialsArgs& a = call.args;
  fill_common(m, a);
  fill_caches(m, a);
  a.record = Record::kV4Fp8;
  a.extra_record = Record::kV41MainFp4;
  a.num_splits = 2;
  a.o_accum = m.output(DType::kFP32, {2, 3, 4, 512});
  a.lse_accum = m.output(DType::kFP32, {2, 3, 4});
  using A = FusedDecodePartialsArgs;
  call.arguments = common_arguments<A>();
  append<A>(call.arguments, cache_arguments<A>());
  append<A>(call.arguments,
            {
                {"o_accum", &A::o_accum, "float32 [2, 3, 4, 512]", Strides::kContiguous, kOutput},
                {"lse_accum", &A::lse_accum, "float32 [2, 3, 4]", Strides::kContiguous, kOutput},
            });
  return call;
}

inline void fill_partials(Memory& m, CombineCommon& a) {
  a.out_partials = m.input(DType::kBF16, {2, 3, 4, 512});
  a.lse_partials = m.input(DType::kFP32, {2, 3, 4});
  a.attn_sink = m.input(DType::kFP32, {4});
}
template <class A>
std::vector<Argument<A>> partial_arguments(const char* d_v) {
  return {
      {"out_partials", &A::out_partials,
       std::string("float32, bfloat16 or float16 [n, s_q, h_q, ") + d_v + "]"},
      {"lse_partials", &A::lse_partials, "float32 [2, 3, 4]"},
      {"attn_sink", &A::attn_sink, "float32 [4]", Strides::kRows, false, nullptr},
  };
}

inline Call<CombinePartialsArgs> combine_partials_call() {
  Call<CombinePartialsArgs> call{"combine_partials"};
  Memory& m = call.memory;
  fill_partials(m, call.args);
  call.args.out = m.output(DType::kBF16, {3, 4, 512});
  call.args.lse = m.output(DType::kFP32, {3, 4});
  using A = CombinePartialsArgs;
  call.arguments = partial_arguments<A>("d_v");
  append<A>(call.arguments,
            {
                {"out", &A::out, "bfloat16, float16 or float32 [3, 4, 512]", Strides::kRows, kOutput},
                {"lse", &A::lse, "float32 [3, 4]", Strides::kRows, kOutput, nullptr},
            });
  return call;
}

inline Call<CombinePartialsFusedArgs> combine_partials_fused_call() {
  Call<CombinePartialsFusedArgs> call{"combine_partials_fused"};
  Memory& m = call.memory;
  CombinePartialsFusedArgs& a = call.args;
  fill_partials(m, a);
  a.n_groups = 2;
  a.out_fp8 = m.output(DType::kE4M3, {3, 2, 1024});
  a.out_sf = sf_view(m.output(DType::kInt32, {2, 8, 4}), 3, 2, 8, 4);
  a.lse = m.output(DType::kFP32, {3, 4});
  using A = CombinePartialsFusedArgs;
  call.arguments = partial_arguments<A>("512");
  append<A>(call.arguments,
            {
                {"out_fp8", &A::out_fp8, "float8_e4m3fn [3, 2, 1024]", Strides::kContiguous, kOutput},
                {"out_sf", &A::out_sf, "int32 [3, 2, 8]", Strides::kOwn, kOutput, "given with out_fp8"},
                {"lse", &A::lse, "float32 [3, 4]", Strides::kRows, kOutput, nullptr},
            });
  return call;
}

inline Call<QuantizeKvArgs> quantize_kv_call() {
  Call<QuantizeKvArgs> call{"quantize_kv"};
  Memory& m = call.memory;
  call.args.x = m.input(DType::kBF16, {10, 576});
  call.args.record = Record::kV32Fp8;
  call.args.pages = m.output(DType::kUInt8, {3, 4, 1, record_bytes(Record::kV32Fp8, 576)});
  using A = QuantizeKvArgs;
  call.arguments = {
      {"x", &A::x, "bfloat16 [n, 576] for record v32_fp8"},
      {"pages", &A::pages, bytes_expected(Record::kV32Fp8, 576), Strides::kPages, kOutput},
  };
  return call;
}

inline Call<DequantizeKvArgs> dequantize_kv_call() {
  Call<DequantizeKvArgs> call{"dequantize_kv"};
  Memory& m = call.memory;
  call.args.pages = pages_of(m, Record::kV32Fp8, 576);
  call.args.record = Record::kV32Fp8;
  call.args.x = m.output(DType::kBF16, {12, 576});
  using A = DequantizeKvArgs;
  call.arguments = {
      {"x", &A::x, "bfloat16 [n, 576] for record v32_fp8", Strides::kRows, kOutput},
      {"pages", &A::pages, bytes_expected(Record::kV32Fp8, 576), Strides::kPages},
  };
  return call;
}

inline Call<AppendKvArgs> append_kv_call() {
  Call<AppendKvArgs> call{"append_kv"};
  Memory& m = call.memory;
  call.args.kv = m.input(DType::kBF16, {5, 576});
  call.args.cache = m.output(DType::kUInt8, {3, 4, 1, record_bytes(Record::kV32Nvfp4, 576)});
  call.args.slots = m.input(DType::kInt64, {5});
  call.args.record = Record::kV32Nvfp4;
  using A = AppendKvArgs;
  call.arguments = {
      {"kv", &A::kv, "bfloat16 [n, 576 or 512]"},
      {"cache", &A::cache, bytes_expected(Record::kV32Nvfp4, 576), Strides::kPages, kOutput},
      {"slots", &A::slots, "int32 or int64 [5]"},
  };
  return call;
}

/// Column-major scales with one padding row.
inline TensorView column_major(const TensorView& memory, int64_t rows, int64_t columns) {
  const int64_t shape[] = {rows, columns};
  const int64_t strides[] = {1, rows + 1};
  return {memory.data(), DType::kInt32, shape, strides};
}

inline Call<PermuteQBProjArgs> permute_q_b_proj_call() {
  Call<PermuteQBProjArgs> call{"permute_q_b_proj"};
  Memory& m = call.memory;
  PermuteQBProjArgs& a = call.args;
  a.h_q = 3;
  a.d_q = 32;
  a.weight = m.input(DType::kE4M3, {96, 1024});
  a.scales = column_major(m.input(DType::kInt32, {2, 97}), 96, 2);
  a.weight_out = m.output(DType::kE4M3, {96, 1024});
  a.scales_out = column_major(m.output(DType::kInt32, {2, 97}), 96, 2);
  using A = PermuteQBProjArgs;
  call.arguments = {
      {"weight", &A::weight, "float8_e4m3fn [96, r]", Strides::kContiguous},
      {"scales", &A::scales, "int32 [96, 8 or 2]", Strides::kOwn},
      {"weight_out", &A::weight_out, "float8_e4m3fn [96, 1024]", Strides::kContiguous, kOutput},
      {"scales_out", &A::scales_out, "int32 [96, 2]", Strides::kOwn, kOutput},
  };
  return call;
}

inline Call<PermuteWvProjArgs> permute_wv_proj_call() {
  Call<PermuteWvProjArgs> call{"permute_wv_proj"};
  Memory& m = call.memory;
  PermuteWvProjArgs& a = call.args;
  a.group_size = 3;
  a.weight = m.input(DType::kE4M3, {2, 5, 1536});
  a.scales = m.input(DType::kInt32, {2, 5, 12});
  a.weight_out = m.output(DType::kE4M3, {2, 5, 1536});
  a.scales_out = m.output(DType::kInt32, {2, 5, 12});
  using A = PermuteWvProjArgs;
  call.arguments = {
      {"weight", &A::weight, "float8_e4m3fn [groups, n, 1536]", Strides::kContiguous},
      {"scales", &A::scales, "int32 [2, 5, 12]", Strides::kContiguous},
      {"weight_out", &A::weight_out, "float8_e4m3fn [2, 5, 1536]", Strides::kContiguous, kOutput},
      {"scales_out", &A::scales_out, "int32 [2, 5, 12]", Strides::kContiguous, kOutput},
  };
  return call;
}

}  // namespace tilewise::errors
