// Random contents of a case's tensors.
#pragma once

#include <cstdint>
#include <functional>

#include "cases/case.h"
#include "cases/random.h"
#include "tilewise/tensor.h"

namespace tilewise::cases {

// Columns of q and k that carry Case::logit_offset: constant in k, so that quantising keeps them equal in all
// rows.
inline constexpr int64_t kOffsetColumns = 128;

// Positions that the rotary tables of the fused operators hold.
inline constexpr int64_t kMaxPositions = 512;

// Stores x as one element of a float type.
void store_float(uint8_t* p, DType type, float x);

// Calls `visit(row, first element)` for every row of the last dimension, rows counted in row-major order.
void for_each_row(const TensorView& view, const std::function<void(int64_t, uint8_t*)>& visit);

// Independent normal numbers times `scale`, in any float type.
void fill_normal(const TensorView& view, Stream64 random, float scale);

// q: normal numbers, and what the logit offset needs. Permuted as the fused operators want it, if `c` is one
// of them.
void fill_q(const TensorView& q, const Case& c, Stream64 random);

// One cached token, bf16 [d]: normal numbers whose size changes every 16 columns.
void make_kv_row(const Case& c, Stream64 random, int64_t row, uint16_t* out);

// Plain rows [.., d] of bf16, fp16 or e4m3.
void fill_kv_rows(const TensorView& kv, const Case& c, Stream64 random);

// A paged cache [num_blocks, page, 1, bytes] of quantised rows.
void fill_cache(const TensorView& cache, const Case& c, Record record, Stream64 random);

// Rows that try the quantisers: many magnitudes, zeros of both signs, subnormals, NaN and infinities.
void fill_hard_rows(const TensorView& x, Stream64 random);

// Every byte random, NaN scales included.
void fill_bytes(const TensorView& view, Stream64 random);

// Token lists [.., width] of distinct slots below `rows`, with the case's holes and duplicates.
void fill_lists(const TensorView& indices, int64_t rows, const Case& c, Stream64 random);

// Slots of append_kv, int32 or int64.
void fill_slots(const TensorView& slots, int64_t rows, const Case& c, Stream64 random);

// topk_length or cache_seqlens.
void fill_lengths(const TensorView& lengths, int64_t width, Lengths mode, Stream64 random);

// Blocks of all requests, distinct as far as there are enough of them.
void fill_block_table(const TensorView& table, int64_t num_blocks, const Case& c, Stream64 random);

// attn_sink or sink_bias.
void fill_sink(const TensorView& sink, const Case& c, Stream64 random);

// Some positions lie outside [0, kMaxPositions).
void fill_positions(const TensorView& positions, Stream64 random);
void fill_cos_sin(const TensorView& table);

// Partial lse, with empty partials where the case has holes; what an empty partial's output holds is made
// NaN.
void fill_partials(const TensorView& out, const TensorView& lse, const Case& c, Stream64 random);

}  // namespace tilewise::cases
