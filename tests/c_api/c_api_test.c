/* The C interface from C99: every operator on small data with known results, every status that a caller can
 * meet, and the whole text of every message that the interface itself adds. */
#define _XOPEN_SOURCE 600 /* for setrlimit */

#include "tilewise/c_api.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { kDim = 512, kMaxRank = 6 };

/* The rows in front of the CPU's in the table of kernels. */
#if defined(TILEWISE_HAS_CUDA)
#define GPU_ROWS "cuda_portable, "
#else
#define GPU_ROWS ""
#endif

static int failures = 0;

static void fail(const char* what, const char* got, const char* expected) {
  ++failures;
  fprintf(stderr, "%s: got \"%s\", expected \"%s\"\n", what, got, expected);
}

static void expect_near(const char* what, double got, double expected) {
  char texts[2][40];
  if (fabs(got - expected) <= 0.01 * fmax(1.0, fabs(expected))) return;
  snprintf(texts[0], sizeof(texts[0]), "%g", got);
  snprintf(texts[1], sizeof(texts[1]), "%g", expected);
  fail(what, texts[0], texts[1]);
}

static void expect_int(const char* what, int64_t got, int64_t expected) {
  char texts[2][40];
  if (got == expected) return;
  snprintf(texts[0], sizeof(texts[0]), "%lld", (long long)got);
  snprintf(texts[1], sizeof(texts[1]), "%lld", (long long)expected);
  fail(what, texts[0], texts[1]);
}

static void expect_ok(const char* what, TilewiseStatus status) {
  if (status != kTilewiseOk) fail(what, tilewise_last_error(), "success");
}

static void expect_refused(TilewiseStatus status, TilewiseStatus expected, const char* text) {
  expect_int(text, status, expected);
  if (strcmp(tilewise_last_error(), text) != 0) fail("message", tilewise_last_error(), text);
}

/* Codes of DLPack 1.1, which headers older than that lack. */
static const DLDataType kBf16 = {kDLBfloat, 16, 1};
static const DLDataType kF32 = {kDLFloat, 32, 1};
static const DLDataType kInt32 = {kDLInt, 32, 1};
static const DLDataType kUint8 = {kDLUInt, 8, 1};
static const DLDataType kE4m3 = {10, 8, 1};

/* A tensor with room for its shape. Row-major unless strides are set afterwards. */
typedef struct Tensor {
  DLTensor dl;
  int64_t shape[kMaxRank];
  int64_t strides[kMaxRank];
} Tensor;

static void set_tensor(Tensor* t, void* data, DLDataType type, int ndim, const int64_t* shape) {
  int i;
  memset(t, 0, sizeof(*t));
  t->dl.data = data;
  t->dl.device.device_type = kDLCPU;
  t->dl.ndim = ndim;
  t->dl.dtype = type;
  for (i = 0; i < ndim; ++i) t->shape[i] = shape[i];
  t->dl.shape = t->shape;
}

#define SET_TENSOR(t, data, type, ...)                                               \
  do {                                                                               \
    const int64_t sizes[] = {__VA_ARGS__};                                           \
    set_tensor((t), (data), (type), (int)(sizeof(sizes) / sizeof(sizes[0])), sizes); \
  } while (0)

/* Enough for values that bfloat16 holds exactly, as here. */
static uint16_t to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return (uint16_t)(bits >> 16);
}

static float from_bf16(uint16_t bits) {
  const uint32_t wide = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &wide, sizeof(value));
  return value;
}

/* Memory for tensors, aligned to 64 bytes and zero. */
static void* new_memory(size_t bytes) {
  static unsigned char pool[1 << 20];
  static size_t used = 0;
  const size_t past = (size_t)((uintptr_t)pool % 64);
  unsigned char* p = pool + used + (past == 0 ? 0 : 64 - past);
  used += (bytes + 63) / 64 * 64;
  if (used + 64 > sizeof(pool)) abort();
  return p;
}

static uint16_t* new_bf16(size_t count, float value) {
  uint16_t* p = new_memory(count * sizeof(uint16_t));
  size_t i;
  for (i = 0; i < count; ++i) p[i] = to_bf16(value);
  return p;
}

/* Row r is r + 1 everywhere, so that with queries of ones and this scale its score is r + 1. */
static const float kScale = 1.0f / kDim;

static uint16_t* new_rows(size_t count) {
  uint16_t* p = new_memory(count * kDim * sizeof(uint16_t));
  size_t i;
  for (i = 0; i < count * kDim; ++i) p[i] = to_bf16((float)(i / kDim + 1));
  return p;
}

/* ------------------------------------------------------------------ sparse_prefill_fwd: two tokens over
 * three rows */

typedef struct Prefill {
  Tensor q, kv, indices, out, max_logits, lse, lse_indexer;
  int32_t list[4];
  float logits[2], sums[2], first_sums[2];
  TilewiseSparsePrefillFwdArgs args;
} Prefill;

static void make_prefill(Prefill* p) {
  static const int32_t kList[4] = {1, -1, 0, 2};
  memset(p, 0, sizeof(*p));
  memcpy(p->list, kList, sizeof(kList));
  SET_TENSOR(&p->q, new_bf16(2 * kDim, 1.0f), kBf16, 2, 1, kDim);
  SET_TENSOR(&p->kv, new_rows(3), kBf16, 3, 1, kDim);
  SET_TENSOR(&p->indices, p->list, kInt32, 2, 1, 2);
  SET_TENSOR(&p->out, new_bf16(2 * kDim, -1.0f), kBf16, 2, 1, kDim);
  SET_TENSOR(&p->max_logits, p->logits, kF32, 2, 1);
  SET_TENSOR(&p->lse, p->sums, kF32, 2, 1);
  SET_TENSOR(&p->lse_indexer, p->first_sums, kF32, 2, 1);
  p->args.size = sizeof(p->args);
  p->args.q = &p->q.dl;
  p->args.kv = &p->kv.dl;
  p->args.indices = &p->indices.dl;
  p->args.softmax_scale = kScale;
  p->args.out = &p->out.dl;
  p->args.max_logits = &p->max_logits.dl;
  p->args.lse = &p->lse.dl;
}

static float out_at(const Prefill* p, int token) {
  return from_bf16(((const uint16_t*)p->out.dl.data)[token * kDim + 7]);
}

static void test_sparse_prefill(void) {
  const double e1 = exp(1.0), e3 = exp(3.0);
  Prefill p;
  make_prefill(&p);
  p.args.indexer_topk = 1;
  p.args.lse_indexer = &p.lse_indexer.dl;
  expect_ok("sparse_prefill_fwd", tilewise_sparse_prefill_fwd(&p.args, NULL, 0));
  expect_near("prefill: lse of token 0", p.sums[0], 2.0);
  expect_near("prefill: lse of token 1", p.sums[1], log(e1 + e3));
  expect_near("prefill: max of token 0", p.logits[0], 2.0);
  expect_near("prefill: max of token 1", p.logits[1], 3.0);
  expect_near("prefill: lse over the first entry of token 1", p.first_sums[1], 1.0);
  expect_near("prefill: output of token 0", out_at(&p, 0), 2.0);
  expect_near("prefill: output of token 1", out_at(&p, 1), (e1 + 3 * e3) / (e1 + e3));
}

static void test_workspace(void) {
  Prefill p;
  size_t bytes = 0;
  char text[120];
  unsigned char* allocated;
  unsigned char* memory;
  make_prefill(&p);
  expect_ok("workspace", tilewise_sparse_prefill_fwd_workspace(&p.args, &bytes));
  expect_int("a prefill needs a workspace", bytes > 0 && bytes < (1 << 28), 1);
  allocated = malloc(bytes + 64);
  if (allocated == NULL) abort();
  memory = allocated + 64 - (uintptr_t)allocated % 64;

  snprintf(text, sizeof(text), "sparse_prefill_fwd: workspace must be of at least %lu bytes, got %lu bytes",
           (unsigned long)bytes, (unsigned long)(bytes - 1));
  expect_refused(tilewise_sparse_prefill_fwd(&p.args, memory, bytes - 1), kTilewiseWorkspaceTooSmall, text);
  snprintf(text, sizeof(text), "sparse_prefill_fwd: workspace must be of at least %lu bytes, got 0 bytes",
           (unsigned long)bytes);
  expect_refused(tilewise_sparse_prefill_fwd(&p.args, memory, 0), kTilewiseWorkspaceTooSmall, text);
  expect_refused(
      tilewise_sparse_prefill_fwd(&p.args, memory + 1, bytes), kTilewiseInvalidArgument,
      "sparse_prefill_fwd: workspace must be memory that starts at a multiple of 64 bytes, got an address 1 "
      "byte past one");
  expect_near("nothing was written by refused calls", out_at(&p, 0), -1.0);

  expect_ok("with a workspace", tilewise_sparse_prefill_fwd(&p.args, memory, bytes));
  expect_near("with a workspace: output of token 0", out_at(&p, 0), 2.0);
  expect_refused(tilewise_sparse_prefill_fwd_workspace(&p.args, NULL), kTilewiseInvalidArgument,
                 "sparse_prefill_fwd: bytes must be given, got NULL");
  free(allocated);
}

/* ------------------------------------------------------------------------------------------------------
 * dense_decode */

static void test_dense_decode(void) {
  const double e1 = exp(1.0), e3 = exp(3.0), e4 = exp(4.0);
  static const int64_t kWindow[2] = {1, 0};
  int32_t table[2] = {1, 0};
  int32_t lengths[1] = {3};
  float lse[1] = {0};
  float sink[1] = {0.5f};
  uint16_t* out = new_bf16(kDim, 0.0f);
  Tensor q, k_cache, block_table, cache_seqlens, out_t, lse_t, sink_t;
  TilewiseDenseDecodeArgs args = {.size = sizeof(args)};
  /* Two pages of two rows; the request's keys are the rows 2, 3 and 0. */
  SET_TENSOR(&q, new_bf16(kDim, 1.0f), kBf16, 1, 1, 1, kDim);
  SET_TENSOR(&k_cache, new_rows(4), kBf16, 2, 2, 1, kDim);
  SET_TENSOR(&block_table, table, kInt32, 1, 2);
  SET_TENSOR(&cache_seqlens, lengths, kInt32, 1);
  SET_TENSOR(&out_t, out, kBf16, 1, 1, 1, kDim);
  SET_TENSOR(&lse_t, lse, kF32, 1, 1, 1);
  SET_TENSOR(&sink_t, sink, kF32, 1);
  args.q = &q.dl;
  args.k_cache = &k_cache.dl;
  args.block_table = &block_table.dl;
  args.cache_seqlens = &cache_seqlens.dl;
  args.softmax_scale = kScale;
  args.out = &out_t.dl;
  args.lse = &lse_t.dl;
  expect_ok("dense_decode", tilewise_dense_decode(&args, NULL, 0));
  expect_near("dense: lse", lse[0], log(e1 + e3 + e4));
  expect_near("dense: output", from_bf16(out[9]), (e1 + 3 * e3 + 4 * e4) / (e1 + e3 + e4));

  args.window = kWindow;
  args.causal = 1;
  args.attn_sink = &sink_t.dl;
  args.threads = 2;
  args.kernel = "cpu_baseline";
  expect_ok("dense_decode with options", tilewise_dense_decode(&args, NULL, 0));
  expect_near("dense, window: lse", lse[0], log(e1 + e4));
  expect_near("dense, window and sink: output", from_bf16(out[9]), (e1 + 4 * e4) / (e1 + e4 + exp(0.5)));

  args.d_v = 64;
  expect_refused(tilewise_dense_decode(&args, NULL, 0), kTilewiseInvalidArgument,
                 "dense_decode: d_v must be 512, got 64");
  args.d_v = 0;
  args.descale_k = &sink_t.dl;
  expect_refused(tilewise_dense_decode(&args, NULL, 0), kTilewiseInvalidArgument,
                 "dense_decode: descale_k must be left out where q is bfloat16, got float32 [1]");
}

/* ---------------------------------------------------------------------------------------------------- caches
 * of records */

/* Four slots of v41_fp8 in two pages: slot r is row r. */
typedef struct Cache {
  Tensor pages;
  unsigned char* bytes;
} Cache;

static void make_cache(Cache* cache) {
  const int64_t width = tilewise_record_bytes("v41_fp8", kDim);
  Tensor x;
  TilewiseQuantizeKvArgs args = {.size = sizeof(args)};
  cache->bytes = new_memory((size_t)(4 * width));
  SET_TENSOR(&cache->pages, cache->bytes, kUint8, 2, 2, 1, width);
  SET_TENSOR(&x, new_rows(4), kBf16, 4, kDim);
  args.x = &x.dl;
  args.record = "v41_fp8";
  args.pages = &cache->pages.dl;
  expect_ok("quantize_kv", tilewise_quantize_kv(&args, NULL, 0));
}

static void test_records(void) {
  expect_int("number of records", (int64_t)tilewise_num_records(), 10);
  expect_int("first record", strcmp(tilewise_record_name(0), "v32_fp8"), 0);
  expect_int("last record", strcmp(tilewise_record_name(9), "bf16"), 0);
  expect_int("no record behind them", tilewise_record_name(10) == NULL, 1);
  expect_int("bytes of bf16", tilewise_record_bytes("bf16", 576), 2 * 576);
  expect_int("bytes of v41_fp8 for another head size", tilewise_record_bytes("v41_fp8", 576), 0);
  expect_int("bytes of no record", tilewise_record_bytes("v9", kDim), 0);
  expect_int("bytes of NULL", tilewise_record_bytes(NULL, kDim), 0);
}

static void test_kv_moves(void) {
  Cache cache;
  Tensor x, kv, slots;
  int64_t slot = 1;
  uint16_t* rows = new_bf16(4 * kDim, 0.0f);
  TilewiseDequantizeKvArgs back = {.size = sizeof(back)};
  TilewiseAppendKvArgs append = {.size = sizeof(append)};
  const DLDataType int64 = {kDLInt, 64, 1};
  make_cache(&cache);
  /* 1 = 256 * 2^-8: the code of 256 is 0x78, the exponent byte of 2^-8 is 119; a page's scales follow its
   * rows. */
  expect_int("first code", cache.bytes[0], 0x78);
  expect_int("first scale", cache.bytes[2 * kDim], 127 - 8);
  /* 2 = 256 * 2^-7. */
  expect_int("code of the second row", cache.bytes[kDim], 0x78);
  expect_int("scale of the second row", cache.bytes[2 * kDim + 16], 127 - 7);

  SET_TENSOR(&kv, new_bf16(kDim, 8.0f), kBf16, 1, kDim);
  SET_TENSOR(&slots, &slot, int64, 1);
  append.kv = &kv.dl;
  append.cache = &cache.pages.dl;
  append.slots = &slots.dl;
  expect_ok("append_kv", tilewise_append_kv(&append, NULL, 0));

  SET_TENSOR(&x, rows, kBf16, 4, kDim);
  back.pages = &cache.pages.dl;
  back.record = "v41_fp8";
  back.x = &x.dl;
  expect_ok("dequantize_kv", tilewise_dequantize_kv(&back, NULL, 0));
  expect_near("slot 0", from_bf16(rows[0]), 1.0);
  expect_near("slot 1, appended", from_bf16(rows[kDim + 511]), 8.0);
  expect_near("slot 2", from_bf16(rows[2 * kDim]), 3.0);
  expect_near("slot 3", from_bf16(rows[3 * kDim + 1]), 4.0);

  back.record = NULL;
  expect_refused(
      tilewise_dequantize_kv(&back, NULL, 0), kTilewiseInvalidArgument,
      "dequantize_kv: record must be named (v32_fp8, v32_nope_fp8, v4_fp8, v41_fp8, v41_fp4, v41_fp8_row, "
      "v41_fp4_row, v41_main_fp4, v32_nvfp4 or bf16), got auto");
  back.record = "fp9";
  expect_refused(
      tilewise_dequantize_kv(&back, NULL, 0), kTilewiseInvalidArgument,
      "dequantize_kv: record must be v32_fp8, v32_nope_fp8, v4_fp8, v41_fp8, v41_fp4, v41_fp8_row, "
      "v41_fp4_row, v41_main_fp4, v32_nvfp4 or bf16, or NULL, got fp9");
}

static void test_sparse_decode(void) {
  const double e1 = exp(1.0), e2 = exp(2.0), e3 = exp(3.0);
  int32_t list[3] = {0, 2, -1};
  int32_t extra_list[2] = {1, 3};
  int32_t extra_length[1] = {1};
  float lse[1] = {0};
  uint16_t* out = new_bf16(kDim, 0.0f);
  Cache cache, extra;
  Tensor q, indices, extra_indices, length, out_t, lse_t;
  TilewiseSparseDecodeArgs args = {.size = sizeof(args)};
  make_cache(&cache);
  make_cache(&extra);
  SET_TENSOR(&q, new_bf16(kDim, 1.0f), kBf16, 1, 1, 1, kDim);
  SET_TENSOR(&indices, list, kInt32, 1, 1, 3);
  SET_TENSOR(&extra_indices, extra_list, kInt32, 1, 1, 2);
  SET_TENSOR(&length, extra_length, kInt32, 1);
  SET_TENSOR(&out_t, out, kBf16, 1, 1, 1, kDim);
  SET_TENSOR(&lse_t, lse, kF32, 1, 1, 1);
  args.q = &q.dl;
  args.kv_cache = &cache.pages.dl;
  args.indices = &indices.dl;
  args.softmax_scale = kScale;
  args.out = &out_t.dl;
  args.lse = &lse_t.dl;
  expect_ok("sparse_decode", tilewise_sparse_decode(&args, NULL, 0));
  expect_near("sparse: lse", lse[0], log(e1 + e3));
  expect_near("sparse: output", from_bf16(out[0]), (e1 + 3 * e3) / (e1 + e3));

  args.record = "v41_fp8";
  args.extra_record = "v41_fp8";
  args.extra_cache = &extra.pages.dl;
  args.extra_indices = &extra_indices.dl;
  args.extra_topk_length = &length.dl;
  expect_ok("sparse_decode with an extra cache", tilewise_sparse_decode(&args, NULL, 0));
  expect_near("sparse, extra: lse", lse[0], log(e1 + e2 + e3));
  expect_near("sparse, extra: output", from_bf16(out[0]), (e1 + 2 * e2 + 3 * e3) / (e1 + e2 + e3));

  args.extra_record = "v32_fp8";
  expect_refused(
      tilewise_sparse_decode(&args, NULL, 0), kTilewiseInvalidArgument,
      "sparse_decode: extra_record must be auto or a record of head size 512 (v32_nope_fp8, v4_fp8, "
      "v41_fp8, v41_fp4, v41_fp8_row, v41_fp4_row, v41_main_fp4 or bf16), got v32_fp8 of head size 576");
}

/* ------------------------------------------------------------------------------------------------- the fused
 * operators */

/* One token with two heads in one group that attends to the row of threes. 3 = 384 * 2^-7: the code of 384 is
 * 0x7C, the exponent byte of 2^-7 is 120, four of which are 0x78787878. */
typedef struct Fused {
  Tensor q, positions, cos_sin, indices, out_fp8, out_sf, out_bf16, lse;
  int32_t position[1], list[2], sf[8];
  float angles[64], sums[2];
  unsigned char* codes;
  uint16_t* plain;
} Fused;

static void make_fused(Fused* f, int ndim_of_list) {
  static const int32_t kList[2] = {-1, 2};
  static const int64_t kPrefillShape[3] = {1, 1, 2}, kDecodeShape[2] = {1, 2};
  int i;
  memset(f, 0, sizeof(*f));
  for (i = 0; i < 32; ++i) f->angles[i] = 1.0f;
  memcpy(f->list, kList, sizeof(kList));
  f->codes = new_memory(2 * kDim);
  f->plain = new_bf16(2 * kDim, 0.0f);
  SET_TENSOR(&f->q, new_bf16(2 * kDim, 1.0f), kBf16, 1, 2, kDim);
  SET_TENSOR(&f->positions, f->position, kInt32, 1);
  SET_TENSOR(&f->cos_sin, f->angles, kF32, 1, 64);
  set_tensor(&f->indices, f->list, kInt32, ndim_of_list, ndim_of_list == 3 ? kPrefillShape : kDecodeShape);
  SET_TENSOR(&f->out_fp8, f->codes, kE4m3, 1, 1, 2 * kDim);
  SET_TENSOR(&f->out_sf, f->sf, kInt32, 1, 1, 8);
  SET_TENSOR(&f->out_bf16, f->plain, kBf16, 1, 2, kDim);
  SET_TENSOR(&f->lse, f->sums, kF32, 1, 2);
}

static void expect_threes(const char* what, const Fused* f) {
  expect_int(what, f->codes[0], 0x7C);
  expect_int(what, f->codes[2 * kDim - 1], 0x7C);
  expect_int(what, f->sf[0], 0x78787878);
  expect_int(what, f->sf[7], 0x78787878);
  expect_near(what, f->sums[0], 3.0);
  expect_near(what, f->sums[1], 3.0);
}

static void test_fused_prefill(void) {
  const float eps = 3.0f; /* halves the scores: 1 / sqrt(1 + 3) */
  float max_logits[2] = {0};
  Fused f;
  Tensor kv, max_t;
  TilewiseFusedPrefillArgs args = {.size = sizeof(args)};
  make_fused(&f, 3);
  SET_TENSOR(&kv, new_rows(3), kBf16, 3, 1, kDim);
  SET_TENSOR(&max_t, max_logits, kF32, 1, 2);
  args.q = &f.q.dl;
  args.kv = &kv.dl;
  args.indices = &f.indices.dl;
  args.token_positions = &f.positions.dl;
  args.cos_sin_cache = &f.cos_sin.dl;
  args.softmax_scale = kScale;
  args.out_fp8 = &f.out_fp8.dl;
  args.out_sf = &f.out_sf.dl;
  args.out_bf16 = &f.out_bf16.dl;
  args.max_logits = &max_t.dl;
  args.lse = &f.lse.dl;
  expect_ok("fused_prefill", tilewise_fused_prefill(&args, NULL, 0));
  expect_threes("fused_prefill", &f);
  expect_near("fused_prefill: plain output", from_bf16(f.plain[kDim + 3]), 3.0);
  expect_near("fused_prefill: max", max_logits[1], 3.0);
  args.q_norm_eps = &eps;
  expect_ok("fused_prefill with norm", tilewise_fused_prefill(&args, NULL, 0));
  expect_near("fused_prefill with norm: max", max_logits[1], 1.5);
  args.n_groups = 3;
  expect_refused(tilewise_fused_prefill(&args, NULL, 0), kTilewiseInvalidArgument,
                 "fused_prefill: n_groups must be a divisor of h_q 2, got 3");
}

static void test_fused_decode(void) {
  float* partials = new_memory(2 * 2 * kDim * sizeof(float));
  float sums[4] = {0};
  Fused f;
  Cache cache;
  Tensor o_accum, lse_accum;
  TilewiseFusedDecodeArgs args = {.size = sizeof(args)};
  TilewiseFusedDecodePartialsArgs parts = {.size = sizeof(parts)};
  TilewiseCombinePartialsFusedArgs merge = {.size = sizeof(merge)};
  make_fused(&f, 2);
  make_cache(&cache);
  args.q = &f.q.dl;
  args.kv_cache = &cache.pages.dl;
  args.indices = &f.indices.dl;
  args.token_positions = &f.positions.dl;
  args.cos_sin_cache = &f.cos_sin.dl;
  args.softmax_scale = kScale;
  args.out_fp8 = &f.out_fp8.dl;
  args.out_sf = &f.out_sf.dl;
  args.lse = &f.lse.dl;
  expect_ok("fused_decode", tilewise_fused_decode(&args, NULL, 0));
  expect_threes("fused_decode", &f);

  SET_TENSOR(&o_accum, partials, kF32, 2, 1, 2, kDim);
  SET_TENSOR(&lse_accum, sums, kF32, 2, 1, 2);
  parts.q = args.q;
  parts.kv_cache = args.kv_cache;
  parts.indices = args.indices;
  parts.token_positions = args.token_positions;
  parts.cos_sin_cache = args.cos_sin_cache;
  parts.softmax_scale = kScale;
  parts.record = "v41_fp8";
  parts.o_accum = &o_accum.dl;
  parts.lse_accum = &lse_accum.dl;
  expect_refused(tilewise_fused_decode_partials(&parts, NULL, 0), kTilewiseInvalidArgument,
                 "fused_decode_partials: num_splits must be 1 to 2147483647, got 0");
  parts.num_splits = 2;
  expect_ok("fused_decode_partials", tilewise_fused_decode_partials(&parts, NULL, 0));

  memset(f.codes, 0, 2 * kDim);
  memset(f.sf, 0, sizeof(f.sf));
  memset(f.sums, 0, sizeof(f.sums));
  merge.out_partials = &o_accum.dl;
  merge.lse_partials = &lse_accum.dl;
  merge.base2 = 1;
  merge.out_fp8 = &f.out_fp8.dl;
  merge.out_sf = &f.out_sf.dl;
  merge.lse = &f.lse.dl;
  expect_ok("combine_partials_fused", tilewise_combine_partials_fused(&merge, NULL, 0));
  expect_threes("combine_partials_fused", &f);
}

static void test_combine_partials(void) {
  float partials[2 * 8], lse_in[2] = {0.0f, 0.0f}, out[8] = {0}, lse[1] = {0}, sink[1] = {0.0f};
  Tensor partials_t, lse_in_t, out_t, lse_t, sink_t;
  TilewiseCombinePartialsArgs args = {.size = sizeof(args)};
  int i;
  for (i = 0; i < 16; ++i) partials[i] = i < 8 ? 1.0f : 5.0f;
  SET_TENSOR(&partials_t, partials, kF32, 2, 1, 1, 8);
  SET_TENSOR(&lse_in_t, lse_in, kF32, 2, 1, 1);
  SET_TENSOR(&out_t, out, kF32, 1, 1, 8);
  SET_TENSOR(&lse_t, lse, kF32, 1, 1);
  SET_TENSOR(&sink_t, sink, kF32, 1);
  args.out_partials = &partials_t.dl;
  args.lse_partials = &lse_in_t.dl;
  args.out = &out_t.dl;
  args.lse = &lse_t.dl;
  expect_ok("combine_partials", tilewise_combine_partials(&args, NULL, 0));
  expect_near("combine: output", out[7], 3.0);
  expect_near("combine: lse", lse[0], log(2.0));
  args.attn_sink = &sink_t.dl;
  expect_ok("combine_partials with a sink", tilewise_combine_partials(&args, NULL, 0));
  expect_near("combine, sink: output", out[7], 2.0);
}

/* -------------------------------------------------------------------------------------------- the weight
 * permutations */

static void test_permute_q_b_proj(void) {
  enum { kHeads = 2, kHeadSize = 32, kRows = kHeads * kHeadSize, kColumns = 128 };
  unsigned char* weight = new_memory(kRows * kColumns);
  unsigned char* weight_out = new_memory(kRows * kColumns);
  int32_t scales[kRows], scales_out[kRows];
  Tensor weight_t, scales_t, weight_out_t, scales_out_t;
  TilewisePermuteQBProjArgs args = {.size = sizeof(args)};
  int h, c;
  for (c = 0; c < kRows; ++c) {
    memset(weight + c * kColumns, c, kColumns);
    scales[c] = 1000 + c;
  }
  SET_TENSOR(&weight_t, weight, kE4m3, kRows, kColumns);
  SET_TENSOR(&scales_t, scales, kInt32, kRows, 1);
  SET_TENSOR(&weight_out_t, weight_out, kE4m3, kRows, kColumns);
  SET_TENSOR(&scales_out_t, scales_out, kInt32, kRows, 1);
  args.weight = &weight_t.dl;
  args.scales = &scales_t.dl;
  args.h_q = kHeads;
  args.d_q = kHeadSize;
  args.weight_out = &weight_out_t.dl;
  args.scales_out = &scales_out_t.dl;
  expect_ok("permute_q_b_proj", tilewise_permute_q_b_proj(&args));
  for (h = 0; h < kHeads; ++h) {
    for (c = 0; c < kHeadSize; ++c) {
      const int to = c / 16 * kHeads * 16 + h * 16 + c % 16;
      expect_int("permute_q_b_proj: weight", weight_out[to * kColumns + 5], h * kHeadSize + c);
      expect_int("permute_q_b_proj: scale", scales_out[to], 1000 + h * kHeadSize + c);
    }
  }
  args.d_q = 20;
  expect_refused(tilewise_permute_q_b_proj(&args), kTilewiseInvalidArgument,
                 "permute_q_b_proj: d_q must be a positive multiple of 16, got 20");
}

static void test_permute_wv_proj(void) {
  enum { kGroup = 2, kColumns = kGroup * kDim };
  unsigned char* weight = new_memory(kColumns);
  unsigned char* weight_out = new_memory(kColumns);
  unsigned char scales[kColumns / 32], scales_out[kColumns / 32];
  int32_t* words = new_memory(sizeof(scales));
  int32_t* words_out = new_memory(sizeof(scales));
  Tensor weight_t, scales_t, weight_out_t, scales_out_t;
  TilewisePermuteWvProjArgs args = {.size = sizeof(args)};
  int i, c;
  for (i = 0; i < kColumns; ++i) weight[i] = (unsigned char)(i / 32);
  for (i = 0; i < kColumns / 32; ++i) scales[i] = (unsigned char)(100 + i);
  memcpy(words, scales, sizeof(scales));
  SET_TENSOR(&weight_t, weight, kE4m3, 1, 1, kColumns);
  SET_TENSOR(&scales_t, words, kInt32, 1, 1, kColumns / 128);
  SET_TENSOR(&weight_out_t, weight_out, kE4m3, 1, 1, kColumns);
  SET_TENSOR(&scales_out_t, words_out, kInt32, 1, 1, kColumns / 128);
  args.weight = &weight_t.dl;
  args.scales = &scales_t.dl;
  args.group_size = kGroup;
  args.weight_out = &weight_out_t.dl;
  args.scales_out = &scales_out_t.dl;
  expect_ok("permute_wv_proj", tilewise_permute_wv_proj(&args));
  memcpy(scales_out, words_out, sizeof(scales_out));
  for (i = 0; i < kGroup; ++i) {
    for (c = 0; c < kDim; ++c) {
      const int to = c / 32 * kGroup * 32 + i * 32 + c % 32;
      expect_int("permute_wv_proj: weight", weight_out[to], (i * kDim + c) / 32);
      expect_int("permute_wv_proj: scale", scales_out[to / 32], 100 + (i * kDim + c) / 32);
    }
  }
  args.d_o = 256;
  expect_refused(tilewise_permute_wv_proj(&args), kTilewiseInvalidArgument,
                 "permute_wv_proj: d_o must be 512, got 256");
}

/* Two queries of one head and one key: its weight is 1, so that out is v, dv the sum of dO, and scores have no
 * gradient. With a selection of no block nothing is seen. */
static void test_prefill_and_gradients(void) {
  enum { kQ = 2, kD = 128 };
  uint16_t* q = new_memory(kQ * kD * 2);
  uint16_t* k = new_memory(kD * 2);
  uint16_t* v = new_memory(kD * 2);
  uint16_t* d_out = new_memory(kQ * kD * 2);
  uint16_t* out = new_memory(kQ * kD * 2);
  uint16_t* dq = new_memory(kQ * kD * 2);
  uint16_t* dk = new_memory(kD * 2);
  uint16_t* dv = new_memory(kD * 2);
  float* lse = new_memory(kQ * sizeof(float));
  int32_t cu_q[2] = {0, kQ}, cu_k[2] = {0, 1}, none[1] = {-1};
  Tensor q_t, k_t, v_t, d_out_t, out_t, dq_t, dk_t, dv_t, lse_t, cu_q_t, cu_k_t, none_t;
  TilewiseDensePrefillFwdArgs forward = {.size = sizeof(forward)};
  TilewiseDensePrefillBwdArgs backward = {.size = sizeof(backward)};
  TilewiseBlockSparsePrefillFwdArgs sparse = {.size = sizeof(sparse)};
  TilewiseBlockSparsePrefillBwdArgs sparse_backward = {.size = sizeof(sparse_backward)};
  int i;
  for (i = 0; i < kQ * kD; ++i) {
    q[i] = to_bf16(1.0f);
    d_out[i] = to_bf16(i < kD ? 2.0f : 1.0f);
    dq[i] = to_bf16(7.0f);
  }
  for (i = 0; i < kD; ++i) {
    k[i] = to_bf16(0.5f);
    v[i] = to_bf16((float)(i % 16));
  }
  SET_TENSOR(&q_t, q, kBf16, kQ, 1, kD);
  SET_TENSOR(&k_t, k, kBf16, 1, 1, kD);
  SET_TENSOR(&v_t, v, kBf16, 1, 1, kD);
  SET_TENSOR(&d_out_t, d_out, kBf16, kQ, 1, kD);
  SET_TENSOR(&out_t, out, kBf16, kQ, 1, kD);
  SET_TENSOR(&dq_t, dq, kBf16, kQ, 1, kD);
  SET_TENSOR(&dk_t, dk, kBf16, 1, 1, kD);
  SET_TENSOR(&dv_t, dv, kBf16, 1, 1, kD);
  SET_TENSOR(&lse_t, lse, kF32, kQ, 1);
  SET_TENSOR(&cu_q_t, cu_q, kInt32, 2);
  SET_TENSOR(&cu_k_t, cu_k, kInt32, 2);
  SET_TENSOR(&none_t, none, kInt32, 1, 1);
#define SET_SEQUENCES(args)           \
  do {                                \
    (args).q = &q_t.dl;               \
    (args).k = &k_t.dl;               \
    (args).v = &v_t.dl;               \
    (args).cu_seqlens_q = &cu_q_t.dl; \
    (args).cu_seqlens_k = &cu_k_t.dl; \
    (args).max_seqlen_q = kQ;         \
    (args).max_seqlen_k = 1;          \
    (args).softmax_scale = 0.25f;     \
    (args).out = &out_t.dl;           \
    (args).lse = &lse_t.dl;           \
  } while (0)
#define SET_GRADIENTS(args)     \
  do {                          \
    (args).d_out = &d_out_t.dl; \
    (args).dq = &dq_t.dl;       \
    (args).dk = &dk_t.dl;       \
    (args).dv = &dv_t.dl;       \
  } while (0)
  SET_SEQUENCES(forward);
  SET_SEQUENCES(backward);
  SET_GRADIENTS(backward);
  SET_SEQUENCES(sparse);
  SET_SEQUENCES(sparse_backward);
  SET_GRADIENTS(sparse_backward);
  expect_ok("dense_prefill_fwd", tilewise_dense_prefill_fwd(&forward, NULL, 0));
  expect_near("dense_prefill_fwd: lse", lse[1], 0.25 * 0.5 * kD);
  expect_ok("dense_prefill_bwd", tilewise_dense_prefill_bwd(&backward, NULL, 0));
  for (i = 0; i < kD; ++i) {
    expect_near("dense_prefill_fwd: out", from_bf16(out[kD + i]), i % 16);
    expect_near("dense_prefill_bwd: dv", from_bf16(dv[i]), 3.0);
    expect_near("dense_prefill_bwd: dq", from_bf16(dq[i]), 0.0);
    expect_near("dense_prefill_bwd: dk", from_bf16(dk[i]), 0.0);
  }
  sparse.q2k = sparse_backward.q2k = &none_t.dl;
  expect_ok("block_sparse_prefill_fwd", tilewise_block_sparse_prefill_fwd(&sparse, NULL, 0));
  expect_int("block_sparse_prefill_fwd: lse of nothing", isinf(lse[0]) && lse[0] > 0, 1);
  expect_ok("block_sparse_prefill_bwd", tilewise_block_sparse_prefill_bwd(&sparse_backward, NULL, 0));
  for (i = 0; i < kD; ++i) {
    expect_near("block_sparse_prefill_fwd: out", from_bf16(out[i]), 0.0);
    expect_near("block_sparse_prefill_bwd: dv", from_bf16(dv[i]), 0.0);
  }
  sparse.q_block = 100;
  expect_refused(tilewise_block_sparse_prefill_fwd(&sparse, NULL, 0), kTilewiseInvalidArgument,
                 "block_sparse_prefill_fwd: q_block must be a positive multiple of 64, got 100");
}

/* One query of two heads that lists one key twice: each position has half of the weight in both heads. */
static void test_sparse_prefill_bwd(void) {
  uint16_t* q = new_memory(2 * kDim * 2);
  uint16_t* kv = new_memory(kDim * 2);
  uint16_t* out = new_memory(2 * kDim * 2);
  uint16_t* dq = new_memory(2 * kDim * 2);
  uint16_t* dkv = new_memory(kDim * 2);
  float lse[2], kl_target[2];
  int32_t indices[2] = {0, 0};
  Tensor q_t, kv_t, out_t, dq_t, dkv_t, lse_t, kl_target_t, indices_t;
  TilewiseSparsePrefillBwdArgs args = {.size = sizeof(args)};
  int i;
  for (i = 0; i < 2 * kDim; ++i) q[i] = out[i] = to_bf16(1.0f);
  for (i = 0; i < kDim; ++i) kv[i] = to_bf16(1.0f);
  lse[0] = lse[1] = 2.0f + logf(2.0f);
  SET_TENSOR(&q_t, q, kBf16, 1, 2, kDim);
  SET_TENSOR(&kv_t, kv, kBf16, 1, 1, kDim);
  SET_TENSOR(&out_t, out, kBf16, 1, 2, kDim);
  SET_TENSOR(&dq_t, dq, kBf16, 1, 2, kDim);
  SET_TENSOR(&dkv_t, dkv, kBf16, 1, 1, kDim);
  SET_TENSOR(&lse_t, lse, kF32, 1, 2);
  SET_TENSOR(&kl_target_t, kl_target, kF32, 1, 2);
  SET_TENSOR(&indices_t, indices, kInt32, 1, 1, 2);
  args.d_out = &out_t.dl;
  args.q = &q_t.dl;
  args.kv = &kv_t.dl;
  args.out = &out_t.dl;
  args.lse = &lse_t.dl;
  args.indices = &indices_t.dl;
  args.softmax_scale = 2.0f / kDim;
  args.dq = &dq_t.dl;
  args.dkv = &dkv_t.dl;
  args.kl_target = &kl_target_t.dl;
  expect_ok("sparse_prefill_bwd", tilewise_sparse_prefill_bwd(&args, NULL, 0));
  expect_near("sparse_prefill_bwd: kl_target", kl_target[0], 1.0);
  expect_near("sparse_prefill_bwd: kl_target", kl_target[1], 1.0);
  for (i = 0; i < kDim; ++i) {
    expect_near("sparse_prefill_bwd: dq", from_bf16(dq[i]), 0.0);
    expect_near("sparse_prefill_bwd: dkv", from_bf16(dkv[i]), 2.0);
  }
  args.d_v = 500;
  expect_refused(tilewise_sparse_prefill_bwd(&args, NULL, 0), kTilewiseInvalidArgument,
                 "sparse_prefill_bwd: d_v must be 512, got 500");
}

static void test_selections(void) {
  int32_t q2k[4] = {1, -1, 1, 0}, expanded[8], row_ptr[4], q_blocks[4] = {9, 9, 9, 9};
  const int32_t expected_rows[8] = {1, -1, 1, -1, 1, 0, 1, 0}, expected_ptr[4] = {0, 1, 3, 3};
  Tensor q2k_t, expanded_t, row_ptr_t, q_blocks_t;
  TilewiseExpandBlockSelectionArgs expand = {.size = sizeof(expand)};
  TilewiseInvertBlockSelectionArgs invert = {.size = sizeof(invert)};
  int i;
  SET_TENSOR(&q2k_t, q2k, kInt32, 2, 2);
  SET_TENSOR(&expanded_t, expanded, kInt32, 4, 2);
  SET_TENSOR(&row_ptr_t, row_ptr, kInt32, 4);
  SET_TENSOR(&q_blocks_t, q_blocks, kInt32, 4);
  expand.q2k = invert.q2k = &q2k_t.dl;
  expand.factor = 2;
  expand.out = &expanded_t.dl;
  expect_ok("expand_block_selection", tilewise_expand_block_selection(&expand));
  for (i = 0; i < 8; ++i) expect_int("expand_block_selection", expanded[i], expected_rows[i]);
  invert.num_kv_blocks = 3;
  invert.row_ptr = &row_ptr_t.dl;
  invert.q_blocks = &q_blocks_t.dl;
  expect_ok("invert_block_selection", tilewise_invert_block_selection(&invert));
  for (i = 0; i < 4; ++i) expect_int("invert_block_selection", row_ptr[i], expected_ptr[i]);
  expect_int("invert_block_selection: of block 0", q_blocks[0], 1);
  expect_int("invert_block_selection: of block 1", q_blocks[1], 0);
  expect_int("invert_block_selection: of block 1", q_blocks[2], 1);
  expect_int("invert_block_selection: past the end", q_blocks[3], 9);
}

/* --------------------------------------------------------------------------------------------------------------
 * errors */

#define EXPECT_NULL_REFUSED(op)                                                              \
  do {                                                                                       \
    size_t bytes = 7;                                                                        \
    const char* text = #op ": args must be given, got NULL";                                 \
    expect_refused(tilewise_##op(NULL, NULL, 0), kTilewiseInvalidArgument, text);            \
    expect_refused(tilewise_##op##_workspace(NULL, &bytes), kTilewiseInvalidArgument, text); \
    expect_int("bytes of a refused call", (int64_t)bytes, 7);                                \
  } while (0)

static void test_null_args(void) {
  EXPECT_NULL_REFUSED(dense_decode);
  EXPECT_NULL_REFUSED(sparse_decode);
  EXPECT_NULL_REFUSED(sparse_prefill_fwd);
  EXPECT_NULL_REFUSED(fused_prefill);
  EXPECT_NULL_REFUSED(fused_decode);
  EXPECT_NULL_REFUSED(fused_decode_partials);
  EXPECT_NULL_REFUSED(combine_partials);
  EXPECT_NULL_REFUSED(combine_partials_fused);
  EXPECT_NULL_REFUSED(quantize_kv);
  EXPECT_NULL_REFUSED(dequantize_kv);
  EXPECT_NULL_REFUSED(append_kv);
  EXPECT_NULL_REFUSED(sparse_prefill_bwd);
  EXPECT_NULL_REFUSED(dense_prefill_fwd);
  EXPECT_NULL_REFUSED(dense_prefill_bwd);
  EXPECT_NULL_REFUSED(block_sparse_prefill_fwd);
  EXPECT_NULL_REFUSED(block_sparse_prefill_bwd);
  expect_refused(tilewise_expand_block_selection(NULL), kTilewiseInvalidArgument,
                 "expand_block_selection: args must be given, got NULL");
  expect_refused(tilewise_invert_block_selection(NULL), kTilewiseInvalidArgument,
                 "invert_block_selection: args must be given, got NULL");
  expect_refused(tilewise_permute_q_b_proj(NULL), kTilewiseInvalidArgument,
                 "permute_q_b_proj: args must be given, got NULL");
  expect_refused(tilewise_permute_wv_proj(NULL), kTilewiseInvalidArgument,
                 "permute_wv_proj: args must be given, got NULL");
}

/* With everything left out: the first tensor that must be there is missed, in both functions. */
#define EXPECT_EMPTY_REFUSED(op, Type, rest)                                                           \
  do {                                                                                                 \
    size_t bytes = 0;                                                                                  \
    Type args = {.size = sizeof(args)};                                                                \
    expect_refused(tilewise_##op(&args, NULL, 0), kTilewiseInvalidArgument, #op ": " rest);            \
    expect_refused(tilewise_##op##_workspace(&args, &bytes), kTilewiseInvalidArgument, #op ": " rest); \
  } while (0)

static void test_everything_left_out(void) {
  EXPECT_EMPTY_REFUSED(dense_decode, TilewiseDenseDecodeArgs, "q must be given, got nothing");
  EXPECT_EMPTY_REFUSED(sparse_decode, TilewiseSparseDecodeArgs, "q must be given, got nothing");
  EXPECT_EMPTY_REFUSED(sparse_prefill_fwd, TilewiseSparsePrefillFwdArgs, "q must be given, got nothing");
  EXPECT_EMPTY_REFUSED(fused_prefill, TilewiseFusedPrefillArgs, "q must be given, got nothing");
  EXPECT_EMPTY_REFUSED(fused_decode, TilewiseFusedDecodeArgs, "q must be given, got nothing");
  EXPECT_EMPTY_REFUSED(fused_decode_partials, TilewiseFusedDecodePartialsArgs,
                       "q must be given, got nothing");
  EXPECT_EMPTY_REFUSED(combine_partials, TilewiseCombinePartialsArgs,
                       "out_partials must be given, got nothing");
  EXPECT_EMPTY_REFUSED(combine_partials_fused, TilewiseCombinePartialsFusedArgs,
                       "out_partials must be given, got nothing");
  EXPECT_EMPTY_REFUSED(append_kv, TilewiseAppendKvArgs, "kv must be given, got nothing");
}

static void test_size(void) {
  struct {
    TilewiseSparsePrefillFwdArgs args;
    unsigned char later_member[16];
  } grown;
  Prefill p;
  char text[200];
  const unsigned long known = sizeof(p.args);
  make_prefill(&p);
  p.args.size = 0;
  snprintf(text, sizeof(text), "sparse_prefill_fwd: size must be sizeof(args), %lu to 4096, got 0", known);
  expect_refused(tilewise_sparse_prefill_fwd(&p.args, NULL, 0), kTilewiseInvalidArgument, text);
  p.args.size = sizeof(p.args) - 1;
  snprintf(text, sizeof(text), "sparse_prefill_fwd: size must be sizeof(args), %lu to 4096, got %lu", known,
           known - 1);
  expect_refused(tilewise_sparse_prefill_fwd(&p.args, NULL, 0), kTilewiseInvalidArgument, text);
  p.args.size = 4097;
  snprintf(text, sizeof(text), "sparse_prefill_fwd: size must be sizeof(args), %lu to 4096, got 4097", known);
  expect_refused(tilewise_sparse_prefill_fwd(&p.args, NULL, 0), kTilewiseInvalidArgument, text);

  /* A caller who knows later members: fine as long as they are left out. */
  memset(&grown, 0, sizeof(grown));
  grown.args = p.args;
  grown.args.size = sizeof(grown);
  expect_ok("a larger struct", tilewise_sparse_prefill_fwd(&grown.args, NULL, 0));
  grown.later_member[15] = 1;
  snprintf(text, sizeof(text),
           "sparse_prefill_fwd: args must be 0 from byte %lu on, which this version of the library does not "
           "know, got "
           "something else",
           known);
  expect_refused(tilewise_sparse_prefill_fwd(&grown.args, NULL, 0), kTilewiseInvalidArgument, text);
}

static void test_tensors(void) {
  static const char* const kPrefix = "sparse_prefill_fwd: kv must be ";
  Prefill p;
  Tensor bad;
  char text[200];
  int row;
  make_prefill(&p);
  p.args.kv = &bad.dl;
  for (row = 0; row < 9; ++row) {
    const char* rest = "";
    bad = p.kv;
    bad.dl.shape = bad.shape;
    switch (row) {
      case 0:
        bad.dl.dtype = kF32;
        rest = "bfloat16 [s_kv, 1, 512], got float32 [3, 1, 512]";
        break;
      case 1:
        bad.dl.ndim = 6;
        rest = "of at most 5 dimensions, got 6";
        break;
      case 2:
        bad.dl.ndim = -1;
        rest = "of at most 5 dimensions, got -1";
        break;
      case 3:
        bad.dl.shape = NULL;
        rest = "of a shape, got NULL";
        break;
      case 4:
        bad.shape[0] = -2;
        rest = "of sizes of at least 0, got [-2, 1, 512]";
        break;
      case 5:
        bad.dl.device.device_type = kDLVulkan;
        rest = "on cpu or cuda, got DLPack device type 7";
        break;
      case 6:
        bad.dl.device.device_type = kDLCUDA;
        bad.dl.device.device_id = 1;
        rest = "on cpu, got cuda:1";
        break;
      case 7:
        bad.dl.dtype.lanes = 2;
        rest = "of a scalar element type, got 2 lanes";
        break;
      default:
        bad.dl.data = NULL;
        rest = "memory, got a null pointer";
    }
    snprintf(text, sizeof(text), "%s%s", kPrefix, rest);
    expect_refused(tilewise_sparse_prefill_fwd(&p.args, NULL, 0), kTilewiseInvalidArgument, text);
  }
  bad = p.kv;
  bad.dl.shape = bad.shape;
  bad.strides[0] = kDim;
  bad.strides[1] = kDim;
  bad.strides[2] = 2;
  bad.dl.strides = bad.strides;
  expect_refused(tilewise_sparse_prefill_fwd(&p.args, NULL, 0), kTilewiseInvalidArgument,
                 "sparse_prefill_fwd: kv must be contiguous in its last dimension, got stride(2) 2");
  /* Views: the rows backwards, from the middle of the memory. */
  bad.dl.byte_offset = 2 * kDim * sizeof(uint16_t);
  bad.strides[0] = -kDim;
  bad.strides[2] = 1;
  expect_ok("strides and an offset", tilewise_sparse_prefill_fwd(&p.args, NULL, 0));
  expect_near("row 1 is in the middle", out_at(&p, 0), 2.0);
  p.list[0] = 0;
  expect_ok("strides and an offset", tilewise_sparse_prefill_fwd(&p.args, NULL, 0));
  expect_near("row 0 is the last one", out_at(&p, 0), 3.0);
}

static void test_options(void) {
  Prefill p;
  make_prefill(&p);
  p.args.kernel = "none";
  expect_refused(tilewise_sparse_prefill_fwd(&p.args, NULL, 0), kTilewiseInvalidArgument,
                 "sparse_prefill_fwd: kernel must be " GPU_ROWS
                 "cpu_amx, cpu_avx512_bf16, cpu_avx512, cpu_avx2, cpu_sse4 or cpu_baseline, got none");
  p.args.kernel = NULL;
  p.args.threads = -1;
  expect_refused(tilewise_sparse_prefill_fwd(&p.args, NULL, 0), kTilewiseInvalidArgument,
                 "sparse_prefill_fwd: threads must be at least 0, got -1");
}

/* The process may take hardly more memory than it has; the call is one that needs tens of MiB of workspace.
 * Its tensors are not there, as nothing of them is touched: the tokens of the inputs are all one, those of
 * the output lie nowhere. */
static void test_out_of_memory(void) {
  struct rlimit limit, tight;
  size_t bytes = 0;
  unsigned long pages = 0;
  FILE* file = fopen("/proc/self/statm", "r");
  Prefill p;
  make_prefill(&p);
  p.args.threads = 1000;
  p.args.max_logits = NULL;
  p.args.lse = NULL;
  p.q.shape[0] = p.indices.shape[0] = p.out.shape[0] = 100000;
  p.q.strides[1] = kDim;
  p.q.strides[2] = 1;
  p.q.dl.strides = p.q.strides;
  p.indices.strides[1] = p.indices.strides[2] = 1;
  p.indices.dl.strides = p.indices.strides;
  p.out.dl.data = (void*)((uintptr_t)1 << 45);
  expect_ok("workspace of many threads", tilewise_sparse_prefill_fwd_workspace(&p.args, &bytes));
  /* Above this size malloc always asks the system. */
  expect_int("a workspace of more than 32 MiB", bytes >> 20 > 32, 1);
  if (file == NULL || fscanf(file, "%lu", &pages) != 1 || getrlimit(RLIMIT_AS, &limit) != 0) {
    fail("this process's memory", "unknown", "known");
    return;
  }
  fclose(file);
  tight = limit;
  tight.rlim_cur = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + (4 << 20);
  expect_int("setrlimit", setrlimit(RLIMIT_AS, &tight), 0);
  expect_refused(tilewise_sparse_prefill_fwd(&p.args, NULL, 0), kTilewiseOutOfMemory,
                 "sparse_prefill_fwd: out of memory");
  expect_int("setrlimit", setrlimit(RLIMIT_AS, &limit), 0);
}

int main(void) {
  expect_int("no message yet", (int64_t)strlen(tilewise_last_error()), 0);
  expect_int("version", strcmp(tilewise_version(), TILEWISE_EXPECTED_VERSION), 0);
  test_records();
  test_sparse_prefill();
  test_workspace();
  test_dense_decode();
  test_kv_moves();
  test_sparse_decode();
  test_fused_prefill();
  test_fused_decode();
  test_combine_partials();
  test_permute_q_b_proj();
  test_permute_wv_proj();
  test_prefill_and_gradients();
  test_sparse_prefill_bwd();
  test_selections();
  test_null_args();
  test_everything_left_out();
  test_size();
  test_tensors();
  test_options();
  test_out_of_memory();
  printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
