// Compiles every function that CPU and GPU share as device code. Nothing runs it: the CPU tests check the
// values.
#include <cstdint>

#include "core/numeric.h"
#include "formats/codec.h"
#include "formats/record.h"
#include "softmax/state.h"
#include "visit/interval.h"
#include "visit/list.h"
#include "visit/rules.h"
#include "visit/work.h"

namespace tilewise {
namespace {

// What the kernel reads and writes; results go to `sums`, so that no call is dropped.
struct Buffers {
  const float* floats;  // [8]
  const int32_t* ids;   // [n], also lengths and counts
  int32_t n;
  int32_t* blocks;  // [n]
  int32_t* q_blocks;
  int32_t* ranks;
  int64_t* row_ptr;
  int32_t* row_ptr_32;
  int64_t* worker_begin;
  visit::WorkItem* items;
  const BF16* row;
  uint8_t* page;
  BF16* decoded;
  float* sums;  // [8]
};

__device__ void numeric_functions(const Buffers& b) {
  const float x = b.floats[0];
  float sum = bits_to_f32(f32_to_bits(x)) + static_cast<float>(f32_magnitude_bits(x));
  sum += f32_is_nan(x) ? 1.0f : 0.0f;
  sum += f32_is_finite(x) ? 1.0f : 0.0f;
  sum += static_cast<float>(drop_bits_to_even(f32_to_bits(x), 16));
  sum += bf16_bits_to_f32(f32_to_bf16_bits(x)) + f16_bits_to_f32(f32_to_f16_bits(x));
  sum += e4m3_to_f32(f32_to_e4m3(x)) + e4m3_to_f32(f32_to_e4m3_up(x)) + e2m1_to_f32(f32_to_e2m1(x));
  sum += pow2_ceil(x) + ue8m0_to_f32(pow2_ceil_to_ue8m0(x));
  b.sums[0] = sum;
}

__device__ void record_functions(const Buffers& b) {
  int64_t sum = 0;
  for (int32_t id = 0; id < b.n; ++id) {
    const formats::RecordSpec spec = formats::record_spec(static_cast<Record>(id), 512);
    sum += formats::token_bytes(spec) + formats::num_scales(spec) + formats::scale_bytes(spec.scales.type);
    sum += formats::scale_offset(spec.scales, b.n) + formats::segment_bytes(spec.segments[0]);
    sum += *formats::plane_row(b.page, 64, spec, spec.num_planes - 1, 3);
    sum += static_cast<int64_t>(formats::nan_scale(spec.scales.type));
    sum += static_cast<int64_t>(formats::group_scale(spec.scales, b.row));
    sum += static_cast<int64_t>(formats::quantised_scale(spec.scales, b.floats[0]));
    sum += static_cast<int64_t>(formats::scale_value(spec.scales.type, 5));
    const uint8_t code = formats::element_code(spec.segments[0].element, b.row[0], b.floats[0]);
    sum += formats::element_value(spec.segments[0].element, code, b.floats[0]).bits;
    formats::encode_columns(spec, spec.segments[0], b.row, 0, 2, 1.0f, b.page);
    formats::encode_row(spec, b.row, b.page, 64, id);
    formats::decode_row(spec, b.page, 64, id, b.decoded);
  }
  formats::store_u16(b.page, formats::load_u16(b.page + 2));
  formats::store_u32(b.page, formats::load_u32(b.page + 4));
  b.sums[1] = static_cast<float>(sum);
}

// A lambda is host and device where the function around it is.
TW_HD int32_t first_above_three(const Buffers& b) {
  return visit::first_where(0, b.n, [&](int32_t i) { return b.ids[i] > 3; });
}

__device__ visit::MaskRule rule_functions(const Buffers& b) {
  using namespace visit;
  const MaskRule rule = make_mask_rule(b.ids[0], b.ids[1], b.ids[2] > 0, b.ids[3], b.ids[4]);
  const KeyLimits limits = both(causal_rule(rule.position(1)), window_rule(rule.position(1), 3, 4));
  int64_t sum = smaller(limits.lo, limits.hi) + larger(limits.lo, limits.hi) + rule.keys(1).size();
  sum += rule.lo(2) + rule.hi(2) + first_above_three(b);
  sum += keys_seen_by_any(rule, {0, 8}).size() + keys_seen_by_all(rule, {0, 8}).size();
  sum += queries_that_see_any(rule, {0, 8}).size() + queries_that_see_all(rule, {0, 8}).size();
  sum += Range{}.empty() ? 1 : 0;
  b.sums[2] = static_cast<float>(sum);
  return rule;
}

template <class Visit>
__device__ int64_t walk(const Visit& visit) {
  int64_t sum = visit.count() + visit.length() + visit.rank(5) + visit.slice(1, 4).count();
  for (visit::Cursor<Visit> cursor(visit); !cursor.done(); cursor.advance()) {
    sum += visit.elements(cursor.current().tile).size() + cursor.place() +
           static_cast<int>(cursor.current().form);
    if (cursor.has_next()) sum += cursor.next().tile;
  }
  return sum;
}

__device__ void visit_functions(const Buffers& b, const visit::MaskRule& rule) {
  using namespace visit;
  const Range rows = queries_of_rows(tile_range(3, 16, b.n).begin, b.n, 8);
  const IntervalVisit interval = visit_keys(rule, rows, 64, TileOrigin::kSequence);
  const IntervalVisit reverse = visit_queries(rule, {0, 64}, 16, TileOrigin::kFirstNeeded);
  int64_t sum =
      walk(interval) + walk(reverse) + tile_count(b.n, 16) + visible_columns(rule, 3, {0, 64}).size();
  sum += make_interval(rows, {}, 16, TileOrigin::kSequence).segments.head().last;
  sum += interval.segments.body().first + interval.segments.slice(0, 3).tail().first;
  sum += interval.segments.tail().empty() ? 1 : 0;

  sort_ascending(b.blocks, b.n);
  const int32_t count = select_blocks(b.ids, b.n, blocks_of({0, b.n}, 128), b.blocks);
  const ListVisit list = make_list(b.blocks, count, 128, interval);
  sum += walk(list) + list.tiles_below(3) + list.rank(3, 1);
  sum += invert_selection(b.blocks, b.ids, 1, 0, b.n, b.row_ptr, b.q_blocks, b.ranks);
  sum += invert_selection(b.blocks, b.ids, 1, 0, b.n, b.row_ptr_32, b.q_blocks, nullptr);

  const SegmentRule cut{.tile = 64};
  const RowSegments segments = segments_of(interval.length(), cut);
  sum += slice_segments(interval, segments, 0, 1).count() + slice_segments(list, segments, 1, 2).count();
  const WorkLine line = make_work_line(b.ids, b.n, cut, 1, 132);
  sum += line.row_length(segments) + line.twice_begin(3) + line.worker_of(0, segments, 0);
  sum += line.end_of_run(0, segments, 0) + max_work_items(b.n, 132);
  sum += assign_work(b.ids, b.n, cut, 1, 132, b.items, b.worker_begin);
  b.sums[3] = static_cast<float>(sum);
}

__device__ void softmax_functions(const Buffers& b) {
  using namespace softmax;
  RowState state;
  float sum = state.rescale(larger_score(b.floats[0], b.floats[1])) + state.add(b.floats[2]);
  sum += rescale_factor(b.floats[3], b.floats[4]) + safe_max(b.floats[3]);
  const Merged merged = merge(state, {b.floats[5], b.floats[6]});
  sum += merged.weight_a + finish(merged.state).lse + finish_with_sink_bias(state, b.floats[7]).scale;
  sum += is_lonely(state) || is_poisoned(state) ? 1.0f : 0.0f;
  sum += sink_bias_probability(b.floats[0], b.floats[1]) + sink_factor(b.floats[0], b.floats[1]);
  sum += lse_from_base2(lse_to_base2(b.floats[0]));
  sum += is_empty_partial(b.floats[0]) ? 1.0f : 0.0f;
  PartialState parts;
  add_partial(parts, b.floats[1], LogBase::kTwo);
  sum += static_cast<float>(partial_weight(parts, b.floats[1], LogBase::kTwo) +
                            merged_lse(parts, LogBase::kTwo));
  b.sums[4] = sum;
}

}  // namespace

__global__ void device_headers(Buffers buffers) {
  numeric_functions(buffers);
  record_functions(buffers);
  const visit::MaskRule rule = rule_functions(buffers);
  visit_functions(buffers, rule);
  softmax_functions(buffers);
}

}  // namespace tilewise
