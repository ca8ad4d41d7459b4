// make(): which tensors a case's call has, how they lie in memory, and what fills them.
#include <algorithm>
#include <utility>

#include "cases/data.h"
#include "cases/fill.h"
#include "core/numeric.h"

namespace tilewise::cases {
namespace {

// Where a tensor's operator allows gaps between its elements.
enum class Gaps {
  kNone,
  kRows,    // after every row of the last dimension and between all outer ones
  kBlocks,  // between the slices of the first dimension
};

constexpr int64_t kAlignment = 16;  // bytes that base and strides of matrices must be multiples of

int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

class Maker {
 public:
  explicit Maker(const Case& c) : c_(c), data_(c), random_{hash_text(name(c))} {}
  CaseData make();

 private:
  using Sizes = std::vector<int64_t>;

  TensorView add(const char* name, Role role, DType type, const Sizes& shape, Gaps gaps);
  TensorView add_with_strides(const char* name, Role role, DType type, const Sizes& shape,
                              const Sizes& strides, int64_t alignment);
  TensorView input(const char* name, DType type, const Sizes& shape, Gaps gaps = Gaps::kRows) {
    return add(name, Role::kInput, type, shape, gaps);
  }
  void output(const char* name, DType type, const Sizes& shape, Gaps gaps = Gaps::kRows) {
    add(name, Role::kOutput, type, shape, gaps);
  }
  Stream64 random(const char* label) const { return random_.child(label); }

  int64_t rows_of(const CacheCase& cache) const { return cache.rows > 0 ? cache.rows : cache.width + 37; }
  int64_t blocks_of(const CacheCase& cache) const { return (rows_of(cache) + cache.page - 1) / cache.page; }
  TensorView cache_tensor(const char* name, Role role, const CacheCase& cache, int64_t blocks);
  void token_lists(const char* cache_name, const char* list_name, const char* length_name,
                   const CacheCase& cache, const Sizes& shape, int64_t lengths);
  void lists_and_lengths(const char* list_name, const char* length_name, const CacheCase& cache, int64_t rows,
                         const Sizes& shape, int64_t lengths);
  void sink();
  void fused_inputs();
  void fused_outputs();
  void fp8_outputs();

  void dense_decode();
  void sparse_decode();
  void sparse_prefill();
  void fused_prefill();
  void fused_decode();
  void combine();
  void kv_move();
  void finish_outputs();

  const Case& c_;
  CaseData data_;
  Stream64 random_;
};

TensorView Maker::add_with_strides(const char* name, Role role, DType type, const Sizes& shape,
                                   const Sizes& strides, int64_t alignment) {
  const int64_t element = size_of(type);
  int64_t last = 0;  // of the elements
  int64_t count = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    last += (shape[i] - 1) * strides[i];
    count *= shape[i];
  }
  Operand operand;
  operand.name = name;
  operand.role = role;
  // A view begins where no larger alignment than the needed one helps it.
  operand.memory = Buffer(count > 0 ? (last + 1) * element : 0, c_.layout == Layout::kViews ? alignment : 0);
  operand.view = TensorView(operand.memory.data(), type, shape, strides);
  if (role == Role::kInput) {
    // Gaps and margins of inputs: NaN, or (where integers are) indices that could be meant.
    const uint8_t byte = type == DType::kInt32 || type == DType::kInt64 ? 0 : 0xFF;
    operand.memory.whole([&](uint8_t* p) { std::fill_n(p, operand.memory.whole_bytes(), byte); });
  } else {
    fill_with_canaries(operand);
  }
  data_.operands().push_back(std::move(operand));
  return data_.operands().back().view;
}

TensorView Maker::add(const char* name, Role role, DType type, const Sizes& shape, Gaps gaps) {
  const int64_t element = size_of(type);
  const bool views = c_.layout == Layout::kViews;
  // Matrices of narrow types must keep 16-byte rows; others may begin anywhere.
  const int64_t unit = element < 4 ? kAlignment / element : 1;
  Sizes strides(shape.size(), 1);
  for (size_t i = shape.size() - 1; i > 0; --i) {
    strides[i - 1] = std::max<int64_t>(shape[i], 1) * strides[i] + (views && gaps == Gaps::kRows ? unit : 0);
  }
  if (gaps == Gaps::kBlocks) strides[0] = round_up(strides[0], unit) + (views ? 3 * unit : 0);
  return add_with_strides(name, role, type, shape, strides, unit * element);
}

TensorView Maker::cache_tensor(const char* name, Role role, const CacheCase& cache, int64_t blocks) {
  const bool plain = cache.record == Record::kBf16;
  const int64_t width = plain ? c_.d_qk : record_bytes(cache.record, c_.d_qk);
  return add(name, role, plain ? DType::kBF16 : cache.storage, {blocks, cache.page, 1, width}, Gaps::kBlocks);
}

void Maker::lists_and_lengths(const char* list_name, const char* length_name, const CacheCase& cache,
                              int64_t rows, const Sizes& shape, int64_t lengths) {
  fill_lists(input(list_name, DType::kInt32, shape), rows, c_, random(list_name));
  if (cache.lengths == Lengths::kNone) return;
  fill_lengths(input(length_name, DType::kInt32, {lengths}), cache.width, cache.lengths, random(length_name));
}

void Maker::token_lists(const char* cache_name, const char* list_name, const char* length_name,
                        const CacheCase& cache, const Sizes& shape, int64_t lengths) {
  const int64_t blocks = blocks_of(cache);
  fill_cache(cache_tensor(cache_name, Role::kInput, cache, blocks), c_, cache.record, random(cache_name));
  lists_and_lengths(list_name, length_name, cache, blocks * cache.page, shape, lengths);
}

void Maker::sink() {
  if (c_.sink == Sink::kNone) return;
  const bool bias = c_.sink == Sink::kBias;
  const char* name = bias ? "sink_bias" : "attn_sink";
  fill_sink(input(name, bias ? c_.sink_dtype : DType::kFP32, {c_.h_q}), c_, random(name));
}

void Maker::dense_decode() {
  const bool fp8 = c_.dtype == DType::kE4M3;
  const int64_t max_blocks = (c_.main.width + c_.main.page - 1) / c_.main.page;
  const int64_t num_blocks = c_.main.rows > 0 ? blocks_of(c_.main) : c_.batch * max_blocks + 2;
  fill_q(input("q", c_.dtype, {c_.batch, c_.s_q, c_.h_q, c_.d_qk}), c_, random("q"));
  fill_kv_rows(input("k_cache", c_.dtype, {num_blocks, c_.main.page, c_.h_kv, c_.d_qk}), c_,
               random("k_cache"));
  fill_block_table(input("block_table", DType::kInt32, {c_.batch, max_blocks}), num_blocks, c_,
                   random("block_table"));
  fill_lengths(input("cache_seqlens", DType::kInt32, {c_.batch}), c_.main.width, c_.main.lengths,
               random("lengths"));
  if (fp8) {
    store_float(input("descale_q", DType::kFP32, {1}).data_as<uint8_t>(), DType::kFP32, 0.75f);
    store_float(input("descale_k", DType::kFP32, {1}).data_as<uint8_t>(), DType::kFP32, 1.3125f);
  }
  sink();
  output("out", fp8 ? DType::kBF16 : c_.dtype, {c_.batch, c_.s_q, c_.h_q, 512});
  if (c_.optional_outputs) output("lse", DType::kFP32, {c_.batch, c_.h_q, c_.s_q});
}

void Maker::sparse_decode() {
  fill_q(input("q", DType::kBF16, {c_.batch, c_.s_q, c_.h_q, c_.d_qk}), c_, random("q"));
  token_lists("kv_cache", "indices", "topk_length", c_.main, {c_.batch, c_.s_q, c_.main.width}, c_.batch);
  if (c_.extra) {
    token_lists("extra_cache", "extra_indices", "extra_topk_length", *c_.extra,
                {c_.batch, c_.s_q, c_.extra->width}, c_.batch);
  }
  sink();
  output("out", DType::kBF16, {c_.batch, c_.s_q, c_.h_q, 512});
  if (c_.optional_outputs) output("lse", DType::kFP32, {c_.batch, c_.h_q, c_.s_q});
}

void Maker::sparse_prefill() {
  const int64_t rows = rows_of(c_.main);
  fill_q(input("q", DType::kBF16, {c_.s_q, c_.h_q, c_.d_qk}), c_, random("q"));
  fill_kv_rows(input("kv", DType::kBF16, {rows, 1, c_.d_qk}), c_, random("kv"));
  lists_and_lengths("indices", "topk_length", c_.main, rows, {c_.s_q, 1, c_.main.width}, c_.s_q);
  sink();
  output("out", DType::kBF16, {c_.s_q, c_.h_q, 512});
  if (c_.optional_outputs) {
    output("max_logits", DType::kFP32, {c_.s_q, c_.h_q});
    output("lse", DType::kFP32, {c_.s_q, c_.h_q});
  }
  if (c_.indexer_topk > 0) output("lse_indexer", DType::kFP32, {c_.s_q, c_.h_q});
}

void Maker::fused_inputs() {
  fill_q(input("q", DType::kBF16, {c_.s_q, c_.h_q, 512}, Gaps::kBlocks), c_, random("q"));
  fill_positions(input("token_positions", DType::kInt32, {c_.s_q}), random("token_positions"));
  fill_cos_sin(input("cos_sin_cache", DType::kFP32, {kMaxPositions, 64}));
  sink();
}

void Maker::fp8_outputs() {
  const int64_t width = c_.h_q / c_.n_groups * 512;
  const int64_t columns = width / 128;
  const int64_t gap = c_.layout == Layout::kViews ? 4 : 0;
  add_with_strides("out_fp8", Role::kOutput, DType::kE4M3, {c_.s_q, c_.n_groups, width},
                   {c_.n_groups * width, width, 1}, 32);
  const int64_t column_stride = round_up(c_.s_q, 4) + gap;
  add_with_strides("out_sf", Role::kOutput, DType::kInt32, {c_.s_q, c_.n_groups, columns},
                   {1, columns * column_stride + gap, column_stride}, 4);
}

void Maker::fused_outputs() {
  if (c_.store != FusedStore::kBf16) fp8_outputs();
  if (c_.store != FusedStore::kFp8) output("out_bf16", DType::kBF16, {c_.s_q, c_.h_q, 512});
  if (!c_.optional_outputs) return;
  if (c_.op == Op::kFusedPrefill) output("max_logits", DType::kFP32, {c_.s_q, c_.h_q});
  output("lse", DType::kFP32, {c_.s_q, c_.h_q});
}

void Maker::fused_prefill() {
  const int64_t rows = rows_of(c_.main);
  fused_inputs();
  fill_kv_rows(input("kv", DType::kBF16, {rows, 1, 512}), c_, random("kv"));
  lists_and_lengths("indices", "topk_length", c_.main, rows, {c_.s_q, 1, c_.main.width}, c_.s_q);
  fused_outputs();
}

void Maker::fused_decode() {
  fused_inputs();
  token_lists("kv_cache", "indices", "topk_length", c_.main, {c_.s_q, c_.main.width}, c_.s_q);
  if (c_.extra) {
    token_lists("extra_cache", "extra_indices", "extra_topk_length", *c_.extra, {c_.s_q, c_.extra->width},
                c_.s_q);
  }
  if (c_.op == Op::kFusedDecode) {
    fused_outputs();
  } else {
    output("o_accum", DType::kFP32, {c_.num_splits, c_.s_q, c_.h_q, 512}, Gaps::kNone);
    output("lse_accum", DType::kFP32, {c_.num_splits, c_.s_q, c_.h_q}, Gaps::kNone);
  }
}

void Maker::combine() {
  const TensorView out = input("out_partials", c_.dtype, {c_.num_splits, c_.s_q, c_.h_q, c_.d_qk});
  const TensorView lse = input("lse_partials", DType::kFP32, {c_.num_splits, c_.s_q, c_.h_q});
  fill_partials(out, lse, c_, random("partials"));
  sink();
  if (c_.op == Op::kCombinePartialsFused) {
    fp8_outputs();
  } else {
    output("out", c_.out_dtype, {c_.s_q, c_.h_q, c_.d_qk});
  }
  if (c_.optional_outputs) output("lse", DType::kFP32, {c_.s_q, c_.h_q});
}

void Maker::kv_move() {
  const int64_t n = c_.s_q;
  const int64_t fresh_blocks = (n + c_.main.page - 1) / c_.main.page;
  if (c_.op == Op::kQuantizeKv) {
    fill_hard_rows(input("x", DType::kBF16, {n, c_.d_qk}), random("x"));
    cache_tensor("pages", Role::kOutput, c_.main, fresh_blocks);
  } else if (c_.op == Op::kDequantizeKv) {
    const TensorView pages = cache_tensor("pages", Role::kInput, c_.main, fresh_blocks);
    fill_cache(pages, c_, c_.main.record, random("pages"));
    // Half of the pages: bytes that no quantiser writes.
    const int64_t odd = fresh_blocks / 2;
    fill_bytes({pages.data(), pages.dtype(), std::vector<int64_t>{odd, pages.size(1), 1, pages.size(3)},
                pages.strides()},
               random("bytes"));
    output("x", DType::kBF16, {fresh_blocks * c_.main.page, c_.d_qk});
  } else {
    const int64_t blocks = blocks_of(c_.main);
    fill_hard_rows(input("kv", DType::kBF16, {n, c_.d_qk}), random("kv"));
    fill_bytes(cache_tensor("kv_cache", Role::kInOut, c_.main, blocks), random("kv_cache"));
    fill_slots(input("slots", c_.dtype, {n}), blocks * c_.main.page, c_, random("slots"));
  }
}

// What an output holds before a call must not matter: its elements are made NaN.
void Maker::finish_outputs() {
  for (Operand& o : data_.operands()) {
    if (o.role == Role::kInput) continue;
    if (o.role == Role::kOutput)
      for_each_run(o.view, [](uint8_t* run, int64_t n) { std::fill_n(run, n, uint8_t{0xFF}); });
    o.initial.resize(static_cast<size_t>(o.memory.whole_bytes()));
    o.memory.whole([&](uint8_t* p) { std::copy_n(p, o.initial.size(), o.initial.begin()); });
  }
}

CaseData Maker::make() {
  switch (c_.op) {
    case Op::kDenseDecode:
      dense_decode();
      break;
    case Op::kSparseDecode:
      sparse_decode();
      break;
    case Op::kSparsePrefillFwd:
      sparse_prefill();
      break;
    case Op::kFusedPrefill:
      fused_prefill();
      break;
    case Op::kFusedDecode:
    case Op::kFusedDecodePartials:
      fused_decode();
      break;
    case Op::kCombinePartials:
    case Op::kCombinePartialsFused:
      combine();
      break;
    case Op::kQuantizeKv:
    case Op::kDequantizeKv:
    case Op::kAppendKv:
      kv_move();
      break;
  }
  finish_outputs();
  return std::move(data_);
}

}  // namespace

CaseData make(const Case& c) { return Maker(c).make(); }

}  // namespace tilewise::cases
