// Checks of heads, sinks, caches and outputs.
#include "ops/forward_check.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "ops/decode_plan.h"

namespace tilewise {
namespace {

constexpr int64_t kStrideUnit = 16;  // bytes
constexpr int64_t kHeadsFree = 128;
constexpr int64_t kHeadsUnit = 64;

bool is_cache_byte(DType type) {
  return type == DType::kUInt8 || type == DType::kInt8 || type == DType::kE4M3;
}

bool is_main(Record record) { return record_pair_allowed(record, record); }

/// Names of the records that `wanted` accepts.
template <class Wanted>
std::string names_of(Wanted wanted) {
  std::vector<std::string_view> names;
  for (Record record : all_records()) {
    if (wanted(record)) names.emplace_back(record_name(record));
  }
  return either_of(names);
}

std::string known_sizes(int64_t d) {
  std::string text;
  for (Record record : all_records()) {
    const int64_t bytes = record_bytes(record, d);
    if (bytes == 0 || infer_record(bytes, d) != record) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", record_name(record), bytes);
  }
  return text;
}

// A side as wide as the longest sequence hides nothing.
int64_t unbounded_if_wide(int64_t side) { return side >= kMaxCount ? -1 : side; }

void check_page_strides(const Checker& check, const PagedArgument& cache) {
  const TensorView& view = cache.view;
  if (view.numel() == 0) return;
  const int64_t width = view.size(3);
  const bool whole_rows = view.size(3) == 1 || view.stride(3) == 1;
  if (!whole_rows || (view.size(1) > 1 && view.stride(1) != width)) {
    check.refuse(cache.name, "contiguous inside a page",
                 fmt::format("strides [{}]", fmt::join(view.strides(), ", ")));
  }
  if (view.size(0) == 1) return;
  const int64_t bytes = view.stride(0) * size_of(view.dtype());
  if (bytes % kStrideUnit != 0) {
    check.refuse(cache.name, "of blocks at strides of whole 16 bytes",
                 fmt::format("stride(0) of {} bytes", bytes));
  }
  const int64_t least = view.size(1) * width * size_of(view.dtype());
  if (bytes < least) {
    check.refuse(cache.name, fmt::format("of blocks at least {} bytes apart", least),
                 fmt::format("stride(0) of {} bytes", bytes));
  }
}

void check_width(const Checker& check, const char* name, const TensorView& indices, const char* dim) {
  check.count(name, dim, indices.size(indices.rank() - 1));
}

/// One cache whose record is known: pages, list and length.
void check_sparse_cache(Checker& check, const SparseCache& cache, Record record, const char* width_name,
                        const ForwardShape& shape, CacheShape* cache_shape, CacheTensors* tensors) {
  check_pages(check, cache.pages, record, shape.d_qk);
  const TensorView& view = cache.pages.view;
  *cache_shape = {true, record, DType::kBF16, view.size(0), view.size(1), 0, cache.length.present()};
  tensors->base = view.data_as<const uint8_t>();
  tensors->block_stride = step_bytes(view, 0);
  tensors->row_stride = step_bytes(view, 1);

  const TensorView& list = cache.indices;
  if (shape.fused) {
    check.input(cache.indices_name, list, {DType::kInt32}, {shape.s_q, width_name});
  } else {
    check.input(cache.indices_name, list, {DType::kInt32}, {shape.batch, shape.s_q, width_name});
    tensors->index_stride_b = step(list, 0);
  }
  check_width(check, cache.indices_name, list, width_name);
  cache_shape->width = list.size(list.rank() - 1);
  tensors->index = list.data_as<const int32_t>();
  tensors->index_stride_s = step(list, list.rank() - 2);

  if (!cache.length) return;
  check.input(cache.length_name, cache.length, {DType::kInt32}, {shape.fused ? shape.s_q : shape.batch});
  tensors->length = cache.length.data_as<const int32_t>();
  (shape.fused ? tensors->length_stride_s : tensors->length_stride_b) = step(cache.length, 0);
}

void check_no_extra(const Checker& check, const SparseCache& extra) {
  const std::string without = fmt::format("without {}", extra.pages.name);
  if (extra.indices)
    check.given(extra.pages.name, extra.pages.view, fmt::format("with {}", extra.indices_name));
  check.left_out(extra.length_name, extra.length, without);
  if (extra.pages.record != Record::kAuto) {
    check.refuse(extra.pages.record_name, fmt::format("auto {}", without), record_name(extra.pages.record));
  }
}

}  // namespace

int64_t step(const TensorView& view, int dim) {
  return view.numel() == 0 || view.size(dim) == 1 ? 0 : view.stride(dim);
}

int64_t step_bytes(const TensorView& view, int dim) { return step(view, dim) * size_of(view.dtype()); }

void check_heads(const Checker& check, const char* name, int64_t h_q) {
  const bool counted = h_q >= 1 && h_q <= kMaxCount;
  if (counted && (h_q <= kHeadsFree || h_q % kHeadsUnit == 0)) return;
  check.refuse(name, fmt::format("of h_q 1 to {} or a multiple of {} above", kHeadsFree, kHeadsUnit),
               fmt::format("h_q {}", h_q));
}

void check_softmax_scale(const Checker& check, float softmax_scale) {
  if (!std::isfinite(softmax_scale))
    check.refuse("softmax_scale", "finite", fmt::format("{:g}", softmax_scale));
}

Window check_window(const Checker& check, Window window, bool causal) {
  const auto got = [&] { return fmt::format("({}, {})", window.left, window.right); };
  if (window.left < -1 || window.right < -1)
    check.refuse("window", "a pair of numbers of at least -1", got());
  if (causal && window.right > 0) check.refuse("window", "of right -1 or 0 where causal", got());
  return {unbounded_if_wide(window.left), unbounded_if_wide(window.right)};
}

void check_d_v(const Checker& check, int64_t d_v) {
  if (d_v != 512) check.refuse("d_v", "512", fmt::format("{}", d_v));
}

void check_n_groups(const Checker& check, int64_t n_groups, int64_t h_q) {
  if (n_groups >= 1 && h_q % n_groups == 0) return;
  check.refuse("n_groups", fmt::format("a divisor of h_q {}", h_q), fmt::format("{}", n_groups));
}

void check_sink(Checker& check, const TensorView& attn_sink, int64_t h_q) {
  if (attn_sink) check.input("attn_sink", attn_sink, {DType::kFP32}, {h_q});
}

void check_sink_bias(Checker& check, const TensorView& sink_bias, int64_t h_q) {
  check.input("sink_bias", sink_bias, {DType::kFP32, DType::kFP16, DType::kBF16}, {h_q});
}

void check_fp8_outputs(Checker& check, const TensorView& out_fp8, const TensorView& out_sf, int64_t s_q,
                       int64_t h_q, int64_t n_groups, Fp8Tensors* tensors) {
  const int64_t width = h_q / n_groups * 512;
  check.output("out_fp8", out_fp8, {DType::kE4M3}, {s_q, n_groups, width}, Layout::kContiguous);
  check.aligned("out_fp8", out_fp8, 32);
  const TensorView& sf = out_sf;
  check.given("out_sf", sf, "with out_fp8");
  check.output("out_sf", sf, {DType::kInt32}, {s_q, n_groups, width / 128}, Layout::kOwn);
  *tensors = {out_fp8.data_as<uint8_t>(), out_sf.data_as<int32_t>(), step(sf, 0), step(sf, 1), step(sf, 2)};
  if (sf.numel() == 0) return;
  const auto got = [&] { return fmt::format("strides [{}]", fmt::join(sf.strides(), ", ")); };
  if (s_q != 1 && sf.stride(0) != 1) check.refuse("out_sf", "of stride(0) 1", got());
  if (sf.stride(2) < s_q) check.refuse("out_sf", fmt::format("of stride(2) at least {} (s_q)", s_q), got());
  if (n_groups != 1 && sf.stride(1) / sf.size(2) < sf.stride(2)) {
    check.refuse("out_sf", fmt::format("of stride(1) at least {} * stride(2)", sf.size(2)), got());
  }
}

Record find_record(const Checker& check, const PagedArgument& cache, int64_t d) {
  const TensorView& view = cache.view;
  check.given(cache.name, view);
  if (cache.record == Record::kAuto) {
    if (view.dtype() == DType::kBF16) return Record::kBf16;
    const bool bytes = is_cache_byte(view.dtype()) && view.rank() == 4;
    const auto found = bytes ? infer_record(view.size(3), d) : std::nullopt;
    if (found) return *found;
    check.refuse(
        cache.name,
        fmt::format("uint8, int8 or float8_e4m3fn [num_blocks, page, 1, bytes] of a record for head size {} "
                    "({}) or bfloat16 [num_blocks, page, 1, {}]",
                    d, known_sizes(d), d),
        to_string(view));
  }
  const auto holds = [d](Record record) { return record_bytes(record, d) > 0; };
  if (!holds(cache.record)) {
    const auto id = static_cast<int32_t>(cache.record);
    const int64_t dim = record_dim(cache.record);
    check.refuse(cache.record_name, fmt::format("auto or a record of head size {} ({})", d, names_of(holds)),
                 dim > 0 ? fmt::format("{} of head size {}", record_name(cache.record), dim)
                         : fmt::format("record id {}", id));
  }
  return cache.record;
}

void check_pages(Checker& check, const PagedArgument& cache, Record record, int64_t d) {
  const std::string condition = fmt::format("for record {}", record_name(record));
  const auto take = [&](std::initializer_list<DType> types, int64_t width) {
    const std::initializer_list<Dim> shape = {"num_blocks", "page", 1, width};
    if (cache.written) {
      check.output(cache.name, cache.view, types, shape, Layout::kOwn, condition);
    } else {
      check.input(cache.name, cache.view, types, shape, Layout::kOwn, condition);
    }
  };
  if (record == Record::kBf16) {
    take({DType::kBF16}, d);
  } else {
    take({DType::kUInt8, DType::kInt8, DType::kE4M3}, record_bytes(record, d));
  }
  check.count(cache.name, "page", cache.view.size(1), 1);
  check_page_strides(check, cache);
}

void check_sparse_caches(Checker& check, const SparseCache& main, const SparseCache& extra,
                         ForwardProblem* problem) {
  ForwardShape& shape = problem->shape;
  const Record record = find_record(check, main.pages, shape.d_qk);
  const bool named = main.pages.record != Record::kAuto;
  if (!is_main(record)) {
    const auto fits = [&](Record r) { return is_main(r) && record_bytes(r, shape.d_qk) > 0; };
    check.refuse(named ? main.pages.record_name : main.pages.name,
                 fmt::format("{}a record for a main cache ({})", named ? "" : "of ", names_of(fits)),
                 record_name(record));
  }
  check_sparse_cache(check, main, record, "topk", shape, &shape.main, &problem->main);
  if (!extra.pages.view) {
    check_no_extra(check, extra);
    return;
  }
  check.given(extra.indices_name, extra.indices, fmt::format("with {}", extra.pages.name));
  const Record second = find_record(check, extra.pages, shape.d_qk);
  if (!record_pair_allowed(record, second)) {
    const bool by_name = extra.pages.record != Record::kAuto;
    check.refuse(by_name ? extra.pages.record_name : extra.pages.name,
                 fmt::format("{}a record that goes with {} ({})", by_name ? "" : "of ", record_name(record),
                             names_of([&](Record r) { return record_pair_allowed(record, r); })),
                 record_name(second));
  }
  check_sparse_cache(check, extra, second, "extra_topk", shape, &shape.extra, &problem->extra);
  // Both lists are one row of keys to the kernels.
  if (shape.main.width + shape.extra.width > kMaxCount) {
    check.refuse(extra.indices_name,
                 fmt::format("at most {} entries together with {}", kMaxCount, main.indices_name),
                 fmt::format("{} and {}", shape.extra.width, shape.main.width));
  }
}

void check_plan(Checker& check, const TensorView& plan, DeviceId device, ForwardProblem* problem) {
  if (!plan) return;
  ForwardShape& shape = problem->shape;
  if (device.type == DeviceType::kCpu) check.left_out("plan", plan, "on the CPU");
  if (shape.batch_invariant) check.left_out("plan", plan, "where batch_invariant");
  check.input("plan", plan, {DType::kInt32}, {decode_plan_size(shape)}, Layout::kContiguous);
  check.aligned("plan", plan, kPlanAlignment);
  shape.planned = true;
  problem->plan = plan.data_as<const int32_t>();
}

void check_prefill_keys(Checker& check, const TensorView& kv, const TensorView& indices,
                        const TensorView& topk_length, ForwardProblem* problem) {
  ForwardShape& shape = problem->shape;
  CacheTensors& keys = problem->main;
  check.input("kv", kv, {DType::kBF16}, {"s_kv", 1, shape.d_qk});
  check.input("indices", indices, {DType::kInt32}, {shape.s_q, 1, "topk"});
  check_width(check, "indices", indices, "topk");
  shape.main = {true, Record::kBf16, DType::kBF16, kv.size(0), 1, indices.size(2), topk_length.present()};
  keys.base = kv.data_as<const uint8_t>();
  keys.block_stride = step_bytes(kv, 0);
  keys.index = indices.data_as<const int32_t>();
  keys.index_stride_s = step(indices, 0);
  if (!topk_length) return;
  check.input("topk_length", topk_length, {DType::kInt32}, {shape.s_q});
  keys.length = topk_length.data_as<const int32_t>();
  keys.length_stride_s = step(topk_length, 0);
}

}  // namespace tilewise
