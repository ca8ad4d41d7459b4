// The parts that several operators' checks share. Each function refuses what breaks the contract and returns
// (or fills in) the canonical form of the rest.
#pragma once

#include <optional>

#include "core/check.h"
#include "ops/forward.h"
#include "tilewise/ops/fused.h"

namespace tilewise {

/// Strides in elements and in bytes; 0 for a dimension that nobody steps along, whatever the view says there.
int64_t step(const TensorView& view, int dim);
int64_t step_bytes(const TensorView& view, int dim);

/// A view as a RowTensor. `b`, `s` and `h` are the view's dimensions of request, token and head; -1: it has
/// none. An absent view gives null. The second form has strides in bytes.
template <class T>
RowTensor<T> rows(const TensorView& view, int b, int s, int h) {
  if (!view) return {};
  const auto along = [&](int dim) { return dim < 0 ? 0 : step(view, dim); };
  return {view.data_as<T>(), along(b), along(s), along(h)};
}
template <class T>
RowTensor<T> byte_rows(const TensorView& view, int b, int s, int h) {
  const auto along = [&](int dim) { return dim < 0 ? 0 : step_bytes(view, dim); };
  return {view.data_as<T>(), along(b), along(s), along(h)};
}

/// 1 to 128 heads, or a multiple of 64 above; `name` is the tensor that shows them.
void check_heads(const Checker& check, const char* name, int64_t h_q);
void check_softmax_scale(const Checker& check, float softmax_scale);
/// The same window with sides that hide nothing as -1.
Window check_window(const Checker& check, Window window, bool causal);
void check_d_v(const Checker& check, int64_t d_v);
void check_n_groups(const Checker& check, int64_t n_groups, int64_t h_q);

/// A float32 vector with one value a head, or nothing.
void check_sink(Checker& check, const TensorView& attn_sink, int64_t h_q);

/// One logit a head in any float type; it is given.
void check_sink_bias(Checker& check, const TensorView& sink_bias, int64_t h_q);

/// out_fp8 and out_sf, both given.
void check_fp8_outputs(Checker& check, const TensorView& out_fp8, const TensorView& out_sf, int64_t s_q,
                       int64_t h_q, int64_t n_groups, Fp8Tensors* tensors);

/// A paged cache of records as the caller gives it. `written` where the operator stores into it.
struct PagedArgument {
  const char* name;
  const TensorView& view;
  const char* record_name;
  Record record;
  bool written = false;
};
/// Its record for head size d: named, or found from its type and its last dimension.
Record find_record(const Checker& check, const PagedArgument& cache, int64_t d);
/// Type, shape and strides of a cache of that record.
void check_pages(Checker& check, const PagedArgument& cache, Record record, int64_t d);

/// One cache of a sparse operator, with the list that selects its tokens.
struct SparseCache {
  PagedArgument pages;
  const char* indices_name;
  const TensorView& indices;
  const char* length_name;
  const TensorView& length;
};
/// Main and extra cache of sparse_decode and of the fused decode forms. shape.fused, batch, s_q and d_qk are
/// known.
void check_sparse_caches(Checker& check, const SparseCache& main, const SparseCache& extra,
                         ForwardProblem* problem);

/// A plan that a decode is given, whose shape is known.
void check_plan(Checker& check, const TensorView& plan, DeviceId device, ForwardProblem* problem);

/// Unpaged bf16 rows [s_kv, 1, d_qk] and their lists [s_q, 1, topk] (prefill forms).
void check_prefill_keys(Checker& check, const TensorView& kv, const TensorView& indices,
                        const TensorView& topk_length, ForwardProblem* problem);

}  // namespace tilewise
