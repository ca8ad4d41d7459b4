// A case: one call of one operator, described by plain data. Tests, benchmarks and tools make their calls
// from cases (data.h turns one into tensors), so that all of them speak of the same shapes under the same
// names.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tilewise/kv_format.h"
#include "tilewise/mask.h"
#include "tilewise/tensor.h"

namespace tilewise::cases {

enum class Op {
  kDenseDecode,
  kSparseDecode,
  kSparsePrefillFwd,
  kFusedPrefill,
  kFusedDecode,
  kFusedDecodePartials,
  kCombinePartials,
  kCombinePartialsFused,
  kQuantizeKv,
  kDequantizeKv,
  kAppendKv,
};

std::span<const Op> all_ops();
const char* op_name(Op op);

// Which entries of a token list (dense_decode: of a block table, kv moves: of the slots) are invalid.
enum class Holes {
  kNone,
  kLeading,      // the first third
  kInterleaved,  // every second entry
  kTrailing,     // the last third
  kAll,          // whole lists, of every second token
  kHuge,         // every third entry, with values far out of range and just out of range
};

// topk_length; dense_decode: cache_seqlens.
enum class Lengths {
  kNone,     // not given; dense_decode: all as long as can be
  kVaried,   // from 0 to the whole list
  kOutside,  // negative ones and ones past the end among them
};

enum class Sink {
  kNone,
  kFinite,
  kExtreme,  // -inf and +inf among finite ones
  kBias,     // sink_bias instead of attn_sink
};

// What the fused operators that cast store.
enum class FusedStore {
  kFp8,
  kBf16,  // the values before the cast, instead
  kBoth,
};

enum class Layout {
  kContiguous,
  kViews,  // every tensor is a view into a larger buffer, with gaps wherever its operator allows them
};

struct CacheCase {
  Record record = Record::kBf16;
  int64_t page = 64;
  int64_t width = 0;  // entries of a token's list; dense_decode: keys of the longest request
  int64_t rows = 0;   // tokens that the cache holds at least; 0: some more than width
  Lengths lengths = Lengths::kNone;
  bool named = true;              // the record is named by the caller, otherwise inferred
  DType storage = DType::kUInt8;  // of records that are bytes

  bool operator==(const CacheCase&) const = default;
};

struct Case {
  Op op = Op::kSparsePrefillFwd;
  int64_t batch = 1;
  int64_t s_q = 1;  // tokens (of a request); kv moves: rows
  int64_t h_q = 1;
  int64_t h_kv = 1;
  int64_t d_qk = 512;  // combine_partials: d_v
  DType dtype =
      DType::kBF16;  // dense_decode: of q and the cache; combine: of the partials; append_kv: of the slots
  DType out_dtype = DType::kBF16;  // combine_partials
  CacheCase main;
  std::optional<CacheCase> extra;

  bool causal = false;
  Window window;
  bool batch_invariant = false;  // dense_decode and sparse_decode
  Sink sink = Sink::kNone;
  DType sink_dtype = DType::kFP32;  // of a sink_bias
  Holes holes = Holes::kNone;
  bool duplicates = false;  // some valid entries of a list repeat others
  int64_t indexer_topk = 0;

  int64_t n_groups = 1;
  std::optional<float> q_norm_eps;
  FusedStore store = FusedStore::kFp8;
  int64_t num_splits = 1;  // of partial results, written or merged
  bool base2 = false;
  bool optional_outputs = true;  // lse and the like are asked for

  Layout layout = Layout::kContiguous;
  float q_scale = 1.0f;       // logits spread in proportion
  float kv_scale = 1.0f;      // of the cached values
  float logit_offset = 0.0f;  // added to all logits (nearly: through constant columns of q and k)
  uint64_t seed = 0;

  bool operator==(const Case&) const = default;
};

bool is_dense(Op op);
bool is_fused(Op op);    // the fused attention operators
bool is_combine(Op op);  // the two merging operators
bool is_kv_move(Op op);  // quantize_kv, dequantize_kv, append_kv
bool is_attention(Op op);
bool has_cache_records(Op op);  // reads or writes paged caches of any record

// The case's name: operator, sizes and every option that is not the default. Different cases have different
// names.
std::string name(const Case& c);

}  // namespace tilewise::cases
