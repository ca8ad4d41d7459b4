// What the checks make of valid calls: empty sizes and views of every kind are taken, and the canonical
// problem has the right pointers and strides.
#include <gtest/gtest.h>

#include "ops/checks.h"
#include "tests/errors/calls.h"

namespace tilewise {
namespace {

using namespace errors;

/// Another view of a buffer.
TensorView strided(const TensorView& room, std::vector<int64_t> shape, std::vector<int64_t> strides) {
  return {room.data(), room.dtype(), shape, strides};
}

TEST(Problem, DenseDecodeOfViews) {
  Call<DenseDecodeArgs> call = dense_decode_call();
  Memory& m = call.memory;
  DenseDecodeArgs& a = call.args;
  a.q = strided(m.input(DType::kFP16, {8000, 8}), {2, 3, 4, 576}, {8000, 2400, 592, 1});
  a.k_cache = strided(m.input(DType::kFP16, {8000, 8}), {3, 5, 2, 576}, {6400, 1176, 592, 1});
  a.block_table = strided(m.input(DType::kInt32, {100}), {2, 2}, {7, 1});
  a.cache_seqlens = m.input(DType::kInt32, {2});
  a.out = strided(m.output(DType::kFP16, {8000, 8}), {2, 3, 4, 512}, {520, 4160, 1040, 1});
  a.lse = strided(m.output(DType::kFP32, {500}), {2, 4, 3}, {4, 9, 1});
  a.causal = true;
  a.window = {int64_t{1} << 40, 0};
  a.softmax_scale = 0.25f;

  const ForwardProblem p = check(a, {});
  const ForwardShape& s = p.shape;
  EXPECT_EQ(s.op, "dense_decode");
  EXPECT_TRUE(s.dense);
  EXPECT_EQ(s.batch, 2);
  EXPECT_EQ(s.s_q, 3);
  EXPECT_EQ(s.h_q, 4);
  EXPECT_EQ(s.h_kv, 2);
  EXPECT_EQ(s.d_qk, 576);
  EXPECT_EQ(s.d_v, 512);
  EXPECT_EQ(s.q_dtype, DType::kFP16);
  EXPECT_EQ(s.out_dtype, DType::kFP16);
  EXPECT_EQ(s.softmax_scale, 0.25f);
  EXPECT_TRUE(s.causal);
  EXPECT_EQ(s.window, (Window{-1, 0})) << "a side wider than any sequence is no limit";
  EXPECT_TRUE(s.has_sink);
  EXPECT_EQ(s.epilogue, Epilogue::kStore);
  EXPECT_FALSE(s.extra.present);
  EXPECT_EQ(s.main, (CacheShape{true, Record::kBf16, DType::kFP16, 3, 5, 2, true}));

  EXPECT_EQ(p.q, a.q.data());
  EXPECT_EQ(p.q_stride_b, 8000);
  EXPECT_EQ(p.q_stride_s, 2400);
  EXPECT_EQ(p.q_stride_h, 592);
  EXPECT_EQ(p.main.base, a.k_cache.data());
  EXPECT_EQ(p.main.block_stride, 12800);
  EXPECT_EQ(p.main.row_stride, 2352);
  EXPECT_EQ(p.main.head_stride, 1184);
  EXPECT_EQ(p.main.index, a.block_table.data());
  EXPECT_EQ(p.main.index_stride_b, 7);
  EXPECT_EQ(p.main.index_stride_s, 0);
  EXPECT_EQ(p.main.length, a.cache_seqlens.data());
  EXPECT_EQ(p.main.length_stride_b, 1);
  EXPECT_EQ(p.main.length_stride_s, 0);
  EXPECT_EQ(p.sink, a.attn_sink.data());
  EXPECT_EQ(p.sink_stride, 1);
  EXPECT_EQ(p.descale_q, nullptr);
  EXPECT_EQ(p.out.data, a.out.data());
  EXPECT_EQ(p.out.stride_b, 1040);
  EXPECT_EQ(p.out.stride_s, 8320);
  EXPECT_EQ(p.out.stride_h, 2080);
  EXPECT_EQ(p.lse.data, a.lse.data());
  EXPECT_EQ(p.lse.stride_b, 4);
  EXPECT_EQ(p.lse.stride_h, 9);
  EXPECT_EQ(p.lse.stride_s, 1);
}

TEST(Problem, DenseDecodeOfFp8) {
  const Call<DenseDecodeArgs> call = dense_decode_fp8_call();
  const ForwardProblem p = check(call.args, {});
  EXPECT_EQ(p.shape.q_dtype, DType::kE4M3);
  EXPECT_EQ(p.shape.main.dtype, DType::kE4M3);
  EXPECT_EQ(p.shape.out_dtype, DType::kBF16);
  EXPECT_EQ(p.descale_q, call.args.descale_q.data());
  EXPECT_EQ(p.descale_k, call.args.descale_k.data());
  EXPECT_EQ(p.main.row_stride, 2 * 576);
}

TEST(Problem, DenseDecodeWindows) {
  const auto window = [](Window given, bool causal) {
    Call<DenseDecodeArgs> call = dense_decode_call();
    call.args.window = given;
    call.args.causal = causal;
    return check(call.args, {}).shape.window;
  };
  EXPECT_EQ(window({-1, -1}, true), (Window{-1, -1}));
  EXPECT_EQ(window({0, 0}, true), (Window{0, 0}));
  EXPECT_EQ(window({7, 9}, false), (Window{7, 9}));
  EXPECT_EQ(window({INT32_MAX - 1, INT32_MAX - 1}, false), (Window{INT32_MAX - 1, INT32_MAX - 1}));
  EXPECT_EQ(window({INT32_MAX, INT64_MAX}, false), (Window{-1, -1}));
}

TEST(Problem, SparseDecodeFindsRecords) {
  for (Record record : all_records()) {
    if (!record_pair_allowed(record, record)) continue;
    const int64_t d = record_dim(record) == 0 ? 576 : record_dim(record);
    Call<SparseDecodeArgs> call = sparse_decode_call(record, record, d);
    call.args.kv_cache = strided(call.args.kv_cache, {3, 4, 1, call.args.kv_cache.size(3)},
                                 {call.args.kv_cache.stride(0) + 32, call.args.kv_cache.size(3), 0, 1});
    const ForwardProblem p = check(call.args, {});
    EXPECT_EQ(p.shape.main, (CacheShape{true, record, DType::kBF16, 3, 4, 5, true})) << record_name(record);
    EXPECT_EQ(p.shape.extra, (CacheShape{true, record, DType::kBF16, 3, 4, 7, true})) << record_name(record);
    const int64_t element = record == Record::kBf16 ? 2 : 1;
    EXPECT_EQ(p.main.block_stride, record_bytes(record, d) * 4 + 32 * element);
    EXPECT_EQ(p.main.row_stride, record_bytes(record, d));
    EXPECT_EQ(p.extra.block_stride, record_bytes(record, d) * 4);
    call.args.record = call.args.extra_record = Record::kAuto;
    const Record found = record == Record::kBf16
                             ? record
                             : infer_record(call.args.kv_cache.size(3), d).value_or(Record::kAuto);
    EXPECT_EQ(check(call.args, {}).shape.main.record, found);
    EXPECT_EQ(check(call.args, {}).shape.extra.record, found);
  }
}

TEST(Problem, SparseDecodeOfViews) {
  Call<SparseDecodeArgs> call = sparse_decode_call();
  SparseDecodeArgs& a = call.args;
  a.indices = strided(call.memory.input(DType::kInt32, {500}), {2, 3, 5}, {40, 11, 1});
  a.extra_indices = strided(call.memory.input(DType::kInt32, {500}), {2, 3, 7}, {0, 9, 1});
  const ForwardProblem p = check(a, {});
  EXPECT_FALSE(p.shape.dense);
  EXPECT_EQ(p.shape.d_qk, 512);
  EXPECT_EQ(p.shape.d_v, 512);
  EXPECT_EQ(p.main.index, a.indices.data());
  EXPECT_EQ(p.main.index_stride_b, 40);
  EXPECT_EQ(p.main.index_stride_s, 11);
  EXPECT_EQ(p.main.length, a.topk_length.data());
  EXPECT_EQ(p.main.length_stride_b, 1);
  EXPECT_EQ(p.main.length_stride_s, 0);
  EXPECT_EQ(p.extra.base, a.extra_cache.data());
  EXPECT_EQ(p.extra.index_stride_b, 0);
  EXPECT_EQ(p.extra.index_stride_s, 9);
  EXPECT_EQ(p.extra.length, a.extra_topk_length.data());
  EXPECT_EQ(p.lse.stride_b, 12);
  EXPECT_EQ(p.lse.stride_h, 3);
  EXPECT_EQ(p.lse.stride_s, 1);
}

TEST(Problem, SparsePrefill) {
  Call<SparsePrefillFwdArgs> call = sparse_prefill_call();
  SparsePrefillFwdArgs& a = call.args;
  a.kv = strided(call.memory.input(DType::kBF16, {6000}), {6, 1, 576}, {592, 3, 1});
  a.sink_bias = call.memory.input(DType::kFP16, {4});
  const ForwardProblem p = check(a, {});
  EXPECT_EQ(p.shape.main, (CacheShape{true, Record::kBf16, DType::kBF16, 6, 1, 5, true}));
  EXPECT_EQ(p.main.base, a.kv.data());
  EXPECT_EQ(p.main.block_stride, 1184);
  EXPECT_EQ(p.main.index_stride_b, 0);
  EXPECT_EQ(p.main.index_stride_s, 5);
  EXPECT_EQ(p.main.length, a.topk_length.data());
  EXPECT_EQ(p.main.length_stride_b, 0);
  EXPECT_EQ(p.main.length_stride_s, 1);
  EXPECT_TRUE(p.shape.has_sink_bias);
  EXPECT_FALSE(p.shape.has_sink);
  EXPECT_EQ(p.shape.sink_bias_dtype, DType::kFP16);
  EXPECT_EQ(p.sink_bias, a.sink_bias.data());
  EXPECT_EQ(p.sink, nullptr);
  EXPECT_EQ(p.shape.indexer_topk, 2);
  EXPECT_EQ(p.lse_indexer.data, a.lse_indexer.data());
  EXPECT_EQ(p.max_logits.data, a.max_logits.data());
  EXPECT_EQ(p.max_logits.stride_s, 4);
  EXPECT_EQ(p.max_logits.stride_h, 1);
  EXPECT_EQ(p.q_stride_b, 0);
  EXPECT_EQ(p.q_stride_s, 4 * 576);
  EXPECT_EQ(p.out.stride_s, 4 * 512 * 2);
  EXPECT_EQ(p.out.stride_h, 512 * 2);
}

TEST(Problem, FusedTokenRangesOfOneBuffer) {
  // Tokens 2..4 of six: columns of out_sf lie 8 apart, groups 100 apart.
  Call<FusedDecodeArgs> call = fused_decode_call();
  FusedDecodeArgs& a = call.args;
  const TensorView fp8 = call.memory.output(DType::kE4M3, {6, 2, 1024});
  const TensorView sf = call.memory.output(DType::kInt32, {400});
  a.out_fp8 = {fp8.data_as<uint8_t>() + 2 * 2048, DType::kE4M3, {3, 2, 1024}};
  a.out_sf = TensorView(sf.data_as<int32_t>() + 2, DType::kInt32, std::vector<int64_t>{3, 2, 8},
                        std::vector<int64_t>{1, 100, 8});
  a.q = strided(call.memory.input(DType::kBF16, {9000}), {3, 4, 512}, {2056, 512, 1});
  const ForwardProblem p = check(a, {});
  EXPECT_EQ(p.shape.op, "fused_decode");
  EXPECT_TRUE(p.shape.fused);
  EXPECT_EQ(p.shape.epilogue, Epilogue::kFp8);
  EXPECT_EQ(p.shape.batch, 1);
  EXPECT_EQ(p.shape.n_groups, 2);
  EXPECT_TRUE(p.shape.q_norm);
  EXPECT_EQ(p.shape.q_norm_eps, 1e-6f);
  EXPECT_EQ(p.shape.max_pos, 9);
  EXPECT_TRUE(p.shape.has_sink);
  EXPECT_EQ(p.out_fp8, a.out_fp8.data());
  EXPECT_EQ(p.out_sf, a.out_sf.data());
  EXPECT_EQ(p.sf_stride_s, 1);
  EXPECT_EQ(p.sf_stride_g, 100);
  EXPECT_EQ(p.sf_stride_c, 8);
  EXPECT_EQ(p.q_stride_s, 2056);
  EXPECT_EQ(p.positions, a.token_positions.data());
  EXPECT_EQ(p.cos_sin, a.cos_sin_cache.data());
  EXPECT_EQ(p.cos_sin_stride, 64);
  EXPECT_EQ(p.out_bf16.data, a.out_bf16.data());
  EXPECT_EQ(p.out_bf16.stride_s, 2048);
  EXPECT_EQ(p.main.index_stride_s, 5);
  EXPECT_EQ(p.main.length_stride_s, 1);
  EXPECT_EQ(p.main.length_stride_b, 0);
  EXPECT_EQ(p.extra.length_stride_s, 1);
  EXPECT_EQ(p.max_logits.data, nullptr);

  a.out_bf16 = {};
  EXPECT_NO_THROW(check(a, {}));
  a.out_bf16 = call.memory.output(DType::kBF16, {3, 4, 512});
  a.out_fp8 = a.out_sf = {};
  EXPECT_EQ(check(a, {}).out_fp8, nullptr);
  a.q_norm_eps = {};
  EXPECT_FALSE(check(a, {}).shape.q_norm);
  a.q_norm_eps = 0.0f;
  EXPECT_TRUE(check(a, {}).shape.q_norm);
}

TEST(Problem, FusedPrefill) {
  const Call<FusedPrefillArgs> call = fused_prefill_call();
  const ForwardProblem p = check(call.args, {});
  EXPECT_EQ(p.shape.main, (CacheShape{true, Record::kBf16, DType::kBF16, 6, 1, 5, true}));
  EXPECT_EQ(p.main.block_stride, 1024);
  EXPECT_EQ(p.main.index_stride_s, 5);
  EXPECT_EQ(p.max_logits.data, call.args.max_logits.data());
  EXPECT_EQ(p.sink, call.args.attn_sink.data());
}

TEST(Problem, FusedPartialsLeaveTheSinkToTheMerge) {
  const Call<FusedDecodePartialsArgs> call = fused_decode_partials_call();
  const ForwardProblem p = check(call.args, {});
  EXPECT_EQ(p.shape.epilogue, Epilogue::kPartials);
  EXPECT_EQ(p.shape.num_splits, 2);
  EXPECT_EQ(p.shape.out_dtype, DType::kFP32);
  EXPECT_FALSE(p.shape.has_sink);
  EXPECT_EQ(p.sink, nullptr);
  EXPECT_EQ(p.out.data, call.args.o_accum.data());
  EXPECT_EQ(p.out.stride_s, 4 * 512 * 4);
  EXPECT_EQ(p.out.stride_h, 512 * 4);
  EXPECT_EQ(p.split_stride_out, 3 * 4 * 512 * 4);
  EXPECT_EQ(p.lse.data, call.args.lse_accum.data());
  EXPECT_EQ(p.lse.stride_s, 4);
  EXPECT_EQ(p.lse.stride_h, 1);
  EXPECT_EQ(p.split_stride_lse, 12);
}

TEST(Problem, Combine) {
  Call<CombinePartialsArgs> call = combine_partials_call();
  call.args.base2 = true;
  const CombineProblem p = check(call.args, {});
  EXPECT_EQ(p.shape.num_partials, 2);
  EXPECT_EQ(p.shape.partial_dtype, DType::kBF16);
  EXPECT_EQ(p.shape.d_v, 512);
  EXPECT_TRUE(p.shape.base2);
  EXPECT_TRUE(p.shape.has_sink);
  EXPECT_FALSE(p.shape.fp8);
  EXPECT_EQ(p.partials.stride_b, 3 * 4 * 1024);
  EXPECT_EQ(p.partials.stride_s, 4 * 1024);
  EXPECT_EQ(p.partials.stride_h, 1024);
  EXPECT_EQ(p.partial_lse.stride_b, 12);
  EXPECT_EQ(p.partial_lse.stride_s, 4);
  EXPECT_EQ(p.out.stride_s, 4096);

  const Call<CombinePartialsFusedArgs> fused = combine_partials_fused_call();
  const CombineProblem q = check(fused.args, {});
  EXPECT_TRUE(q.shape.fp8);
  EXPECT_EQ(q.shape.n_groups, 2);
  EXPECT_EQ(q.out_fp8, fused.args.out_fp8.data());
  EXPECT_EQ(q.out_sf, fused.args.out_sf.data());
  EXPECT_EQ(q.sf_stride_g, 32);
  EXPECT_EQ(q.sf_stride_c, 4);
}

TEST(Problem, KvMoves) {
  const Call<QuantizeKvArgs> quantize = quantize_kv_call();
  const KvMoveProblem p = check(quantize.args, {});
  EXPECT_EQ(p.shape.move, KvMove::kQuantize);
  EXPECT_EQ(p.shape.record, Record::kV32Fp8);
  EXPECT_EQ(p.shape.n, 10);
  EXPECT_EQ(p.shape.d, 576);
  EXPECT_EQ(p.shape.num_blocks, 3);
  EXPECT_EQ(p.shape.page, 4);
  EXPECT_EQ(p.x, quantize.args.x.data());
  EXPECT_EQ(p.x_stride, 576);
  EXPECT_EQ(p.pages, quantize.args.pages.data());
  EXPECT_EQ(p.block_stride, 4 * record_bytes(Record::kV32Fp8, 576));

  const Call<DequantizeKvArgs> dequantize = dequantize_kv_call();
  const KvMoveProblem d = check(dequantize.args, {});
  EXPECT_EQ(d.shape.move, KvMove::kDequantize);
  EXPECT_EQ(d.shape.n, 12);
  EXPECT_EQ(d.x, dequantize.args.x.data());

  Call<AppendKvArgs> append = append_kv_call();
  const KvMoveProblem a = check(append.args, {});
  EXPECT_EQ(a.shape.move, KvMove::kAppend);
  EXPECT_EQ(a.shape.slot_dtype, DType::kInt64);
  EXPECT_EQ(a.slots, append.args.slots.data());
  EXPECT_EQ(a.slot_stride, 1);
}

/// An address that nothing near has; checks look at addresses alone.
void* far_away() { return reinterpret_cast<void*>(static_cast<intptr_t>(int64_t{1} << 44)); }

TEST(LargeSizes, RowsThatNoIndexReachesAreAllowed) {
  const int64_t rows = (int64_t{1} << 31) + 10;
  Call<SparsePrefillFwdArgs> prefill = sparse_prefill_call();
  prefill.args.kv = strided(prefill.args.kv, {rows, 1, 576}, {0, 0, 1});
  EXPECT_EQ(check(prefill.args, {}).shape.main.num_blocks, rows);
  Call<DenseDecodeArgs> decode = dense_decode_call();
  decode.args.k_cache = strided(decode.args.k_cache, {1000, INT32_MAX, 1, 576}, {0, 0, 0, 1});
  decode.args.block_table = {far_away(), DType::kInt32, {2, INT32_MAX}};
  EXPECT_EQ(check(decode.args, {}).shape.main.page, INT32_MAX);
}

TEST(LargeSizes, HeadsInMultiplesOf64) {
  for (int64_t h_q : {1, 5, 127, 128, 192, 256, 65536}) {
    Call<DenseDecodeArgs> call = dense_decode_call();
    DenseDecodeArgs& a = call.args;
    a.q = {a.q.data(), DType::kBF16, {1, 1, h_q, 576}};
    a.k_cache = strided(a.k_cache, {3, 5, 1, 576}, {5760, 1152, 0, 1});
    a.block_table = strided(a.block_table, {1, 2}, {2, 1});
    a.cache_seqlens = strided(a.cache_seqlens, {1}, {1});
    a.attn_sink = {};
    a.out = TensorView(far_away(), DType::kBF16, {1, 1, h_q, 512});
    a.lse = {};
    EXPECT_EQ(check(a, {}).shape.h_q, h_q);
  }
}

/// A view without elements and without memory.
TensorView none(DType type, std::initializer_list<int64_t> shape) { return {nullptr, type, shape}; }

TEST(EmptySizes, DenseDecode) {
  Call<DenseDecodeArgs> call = dense_decode_call();
  DenseDecodeArgs& a = call.args;
  a.k_cache = none(DType::kBF16, {0, 64, 1, 576});
  EXPECT_EQ(check(a, {}).shape.main.num_blocks, 0);
  a.block_table = none(DType::kInt32, {2, 0});
  EXPECT_EQ(check(a, {}).shape.main.width, 0);
  a.q = none(DType::kBF16, {2, 0, 4, 576});
  a.out = none(DType::kBF16, {2, 0, 4, 512});
  a.lse = none(DType::kFP32, {2, 4, 0});
  EXPECT_EQ(check(a, {}).shape.s_q, 0);
  a.q = none(DType::kBF16, {0, 3, 4, 576});
  a.block_table = none(DType::kInt32, {0, 0});
  a.cache_seqlens = none(DType::kInt32, {0});
  a.out = none(DType::kBF16, {0, 3, 4, 512});
  a.lse = none(DType::kFP32, {0, 4, 3});
  EXPECT_EQ(check(a, {}).shape.batch, 0);
}

TEST(EmptySizes, SparseOperators) {
  Call<SparseDecodeArgs> decode = sparse_decode_call();
  decode.args.kv_cache = none(DType::kUInt8, {0, 64, 1, record_bytes(Record::kV41Fp8, 512)});
  decode.args.indices = none(DType::kInt32, {2, 3, 0});
  EXPECT_EQ(check(decode.args, {}).shape.main.width, 0);
  Call<SparsePrefillFwdArgs> prefill = sparse_prefill_call();
  prefill.args.kv = none(DType::kBF16, {0, 1, 576});
  EXPECT_EQ(check(prefill.args, {}).shape.main.num_blocks, 0);
  prefill.args.indices = none(DType::kInt32, {3, 1, 0});
  prefill.args.indexer_topk = 0;
  prefill.args.lse_indexer = {};
  EXPECT_EQ(check(prefill.args, {}).shape.main.width, 0);
}

TEST(EmptySizes, FusedWithoutTokensNeedsNoPositions) {
  Call<FusedPrefillArgs> call = fused_prefill_call();
  FusedPrefillArgs& a = call.args;
  a.q = none(DType::kBF16, {0, 4, 512});
  a.token_positions = none(DType::kInt32, {0});
  a.cos_sin_cache = none(DType::kFP32, {0, 64});
  a.indices = none(DType::kInt32, {0, 1, 5});
  a.topk_length = none(DType::kInt32, {0});
  a.out_fp8 = none(DType::kE4M3, {0, 2, 1024});
  a.out_sf = none(DType::kInt32, {0, 2, 8});
  a.out_bf16 = none(DType::kBF16, {0, 4, 512});
  a.max_logits = a.lse = none(DType::kFP32, {0, 4});
  EXPECT_EQ(check(a, {}).shape.s_q, 0);
}

TEST(EmptySizes, CombineAndKvMoves) {
  Call<CombinePartialsArgs> combine = combine_partials_call();
  combine.args.out_partials = none(DType::kBF16, {0, 3, 4, 512});
  combine.args.lse_partials = none(DType::kFP32, {0, 3, 4});
  EXPECT_EQ(check(combine.args, {}).shape.num_partials, 0);
  Call<QuantizeKvArgs> quantize = quantize_kv_call();
  quantize.args.x = none(DType::kBF16, {0, 576});
  quantize.args.pages = none(DType::kUInt8, {0, 4, 1, record_bytes(Record::kV32Fp8, 576)});
  EXPECT_EQ(check(quantize.args, {}).shape.n, 0);
  Call<AppendKvArgs> append = append_kv_call();
  append.args.kv = none(DType::kBF16, {0, 576});
  append.args.slots = none(DType::kInt64, {0});
  EXPECT_EQ(check(append.args, {}).shape.n, 0);
}

TEST(OddStrides, OfDimensionsThatNobodyStepsAlong) {
  // One request, one token, one head: their strides say nothing, however odd.
  Call<SparsePrefillFwdArgs> call = sparse_prefill_call();
  SparsePrefillFwdArgs& a = call.args;
  a.q = strided(a.q, {1, 1, 576}, {INT64_MAX, -3, 1});
  a.indices = strided(a.indices, {1, 1, 5}, {INT64_MIN, 7, 1});
  a.topk_length = strided(a.topk_length, {1}, {INT64_MAX});
  a.sink_bias = strided(a.sink_bias, {1}, {99});
  a.out = strided(a.out, {1, 1, 512}, {1, 1, 1});
  a.max_logits = strided(a.max_logits, {1, 1}, {5, 5});
  a.lse = strided(a.lse, {1, 1}, {0, 0});
  a.lse_indexer = strided(a.lse_indexer, {1, 1}, {-1, -1});
  const ForwardProblem p = check(a, {});
  EXPECT_EQ(p.q_stride_s, 0);
  EXPECT_EQ(p.q_stride_h, 0);
  EXPECT_EQ(p.main.index_stride_s, 0);
  EXPECT_EQ(p.out.stride_h, 0);
}

TEST(OddStrides, OfViewsWithoutElements) {
  Call<DenseDecodeArgs> call = dense_decode_call();
  DenseDecodeArgs& a = call.args;
  a.q = strided(a.q, {2, 0, 4, 576}, {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX});
  a.out = strided(a.out, {2, 0, 4, 512}, {INT64_MIN, INT64_MIN, 3, 3});
  a.lse = none(DType::kFP32, {2, 4, 0});
  EXPECT_EQ(check(a, {}).q_stride_b, 0);
}

TEST(OddStrides, HeadsShareAllInputs) {
  Call<DenseDecodeArgs> call = dense_decode_call();
  call.args.q = strided(call.args.q, {2, 3, 4, 576}, {0, 0, 0, 1});
  EXPECT_EQ(check(call.args, {}).q_stride_h, 0);
}

}  // namespace
}  // namespace tilewise
