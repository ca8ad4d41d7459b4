#include "bench/gpu/inputs.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "cases/fill.h"
#include "core/row_major.h"
#include "cuda/common/launch.h"

namespace tilewise::bench {
namespace {

using cases::CacheCase;
using cases::Op;
using cases::Role;
using cuda::check_cuda;

constexpr int64_t kMadeTokens = 8192;  // of caches and queries; later ones repeat them

int64_t product(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
}

int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

// Copies the first `made` bytes on and on, until there are `all`.
void repeat(uint8_t* first, int64_t made, int64_t all) {
  while (made < all) {
    const int64_t next = std::min(made, all - made);
    check_cuda(cudaMemcpy(first + made, first, static_cast<size_t>(next), cudaMemcpyDeviceToDevice),
               "repeating a tensor's rows");
    made += next;
  }
}

}  // namespace

DeviceBytes::DeviceBytes(int64_t bytes) {
  void* p = nullptr;
  check_cuda(cudaMalloc(&p, static_cast<size_t>(std::max<int64_t>(bytes, 1))), "a tensor's memory");
  data_.reset(p);
}

void DeviceBytes::Free::operator()(void* p) const { static_cast<void>(cudaFree(p)); }

cases::Stream64 GpuInputs::random(const char* name) const { return random_.child(name); }

TensorView GpuInputs::input(const char* name, DType type, const Sizes& shape, int64_t made,
                            const Fill& fill) {
  Sizes part = shape;
  part[0] = std::min(made, shape[0]);
  const int64_t part_bytes = product(part) * size_of(type);
  const int64_t bytes = product(shape) * size_of(type);
  std::vector<uint8_t> host(static_cast<size_t>(part_bytes));
  const auto strides = row_major_strides(part);
  const auto strides_used = std::span(strides).first(shape.size());
  fill({host.data(), type, part, strides_used});
  memory_.emplace_back(bytes);
  auto* device = static_cast<uint8_t*>(memory_.back().data());
  check_cuda(cudaMemcpy(device, host.data(), host.size(), cudaMemcpyHostToDevice), name);
  if (part_bytes > 0) repeat(device, part_bytes, bytes);
  cases::Operand operand;
  operand.name = name;
  operand.view = TensorView(device, type, shape, strides_used, device_);
  data_.operands().push_back(std::move(operand));
  return data_.operands().back().view;
}

void GpuInputs::whole_input(const char* name, DType type, const Sizes& shape, const Fill& fill) {
  input(name, type, shape, shape[0], fill);
  bytes_ += static_cast<double>(product(shape) * size_of(type));
}

void GpuInputs::output(const char* name, DType type, const Sizes& shape) {
  const auto strides = row_major_strides(shape);
  output(name, type, shape, Sizes(strides.begin(), strides.begin() + static_cast<int64_t>(shape.size())));
}

void GpuInputs::output(const char* name, DType type, const Sizes& shape, const Sizes& strides) {
  int64_t last = 0;
  for (size_t i = 0; i < shape.size(); ++i) last += (shape[i] - 1) * strides[i];
  memory_.emplace_back((last + 1) * size_of(type));
  cases::Operand operand;
  operand.name = name;
  operand.role = Role::kOutput;
  operand.view = TensorView(memory_.back().data(), type, shape, strides, device_);
  bytes_ += static_cast<double>(product(shape) * size_of(type));
  data_.operands().push_back(std::move(operand));
}

void GpuInputs::count_reads(double count, double token_bytes, double pairs) {
  bytes_ += count * token_bytes;
  flops_ += 2.0 * pairs * static_cast<double>(c_.h_q * (c_.d_qk + 512));
}

void GpuInputs::q(const Sizes& shape) {
  const DType type = c_.op == Op::kDenseDecode ? c_.dtype : DType::kBF16;
  const int64_t slice = product(shape) / shape[0];
  input("q", type, shape, std::max<int64_t>(1, kMadeTokens * 512 / slice),
        [&](const TensorView& view) { cases::fill_q(view, c_, random("q")); });
  bytes_ += static_cast<double>(product(shape) * size_of(type));
}

void GpuInputs::paged_cache(const char* name, Role role, const CacheCase& cache) {
  const bool plain = cache.record == Record::kBf16;
  const int64_t width = plain ? c_.d_qk : record_bytes(cache.record, c_.d_qk);
  const Sizes shape = {(cache.rows + cache.page - 1) / cache.page, cache.page, 1, width};
  input(name, plain ? DType::kBF16 : cache.storage, shape, std::max<int64_t>(1, kMadeTokens / cache.page),
        [&](const TensorView& view) { cases::fill_cache(view, c_, cache.record, random(name)); });
  data_.operand(name).role = role;
}

void GpuInputs::token_lists(const char* cache, const char* lists, const CacheCase& what, Sizes shape) {
  const TensorView rows = data_.view(cache);
  const bool paged = rows.rank() == 4;
  const int64_t slots = paged ? rows.size(0) * rows.size(1) : rows.size(0);
  shape.push_back(what.width);
  whole_input(lists, DType::kInt32, shape,
              [&](const TensorView& view) { cases::fill_lists(view, slots, c_, random(lists)); });
  const auto keys = static_cast<double>(product(shape));
  count_reads(keys, static_cast<double>(rows.numel() * size_of(rows.dtype())) / static_cast<double>(slots),
              keys);
}

void GpuInputs::fused_inputs() {
  q({c_.s_q, c_.h_q, 512});
  whole_input("token_positions", DType::kInt32, {c_.s_q},
              [&](const TensorView& view) { cases::fill_positions(view, random("token_positions")); });
  whole_input("cos_sin_cache", DType::kFP32, {cases::kMaxPositions, 64}, cases::fill_cos_sin);
}

void GpuInputs::fp8_outputs() {
  const int64_t width = c_.h_q / c_.n_groups * 512;
  const int64_t columns = width / 128;
  const int64_t step = round_up(c_.s_q, 4);
  output("out_fp8", DType::kE4M3, {c_.s_q, c_.n_groups, width});
  output("out_sf", DType::kInt32, {c_.s_q, c_.n_groups, columns}, {1, columns * step, step});
}

void GpuInputs::dense_decode() {
  const int64_t max_blocks = c_.main.width / c_.main.page;
  const int64_t num_blocks = c_.batch * max_blocks;
  q({c_.batch, c_.s_q, c_.h_q, c_.d_qk});
  const TensorView cache =
      input("k_cache", c_.dtype, {num_blocks, c_.main.page, c_.h_kv, c_.d_qk},
            std::max<int64_t>(1, kMadeTokens / c_.main.page),
            [&](const TensorView& view) { cases::fill_kv_rows(view, c_, random("k_cache")); });
  whole_input("block_table", DType::kInt32, {c_.batch, max_blocks}, [&](const TensorView& view) {
    cases::fill_block_table(view, num_blocks, c_, random("block_table"));
  });
  whole_input("cache_seqlens", DType::kInt32, {c_.batch}, [&](const TensorView& view) {
    std::fill_n(view.data_as<int32_t>(), c_.batch, static_cast<int32_t>(c_.main.width));
  });
  const auto keys = static_cast<double>(c_.batch * c_.main.width);
  const int64_t hidden = c_.causal ? c_.s_q * (c_.s_q - 1) / 2 : 0;  // pairs of a request
  count_reads(keys, static_cast<double>(cache.size(2) * c_.d_qk * size_of(c_.dtype)),
              keys * static_cast<double>(c_.s_q) - static_cast<double>(c_.batch * hidden));
  output("out", c_.dtype, {c_.batch, c_.s_q, c_.h_q, 512});
  output("lse", DType::kFP32, {c_.batch, c_.h_q, c_.s_q});
}

void GpuInputs::sparse_decode() {
  q({c_.batch, c_.s_q, c_.h_q, c_.d_qk});
  paged_cache("kv_cache", Role::kInput, c_.main);
  token_lists("kv_cache", "indices", c_.main, {c_.batch, c_.s_q});
  if (c_.extra) {
    paged_cache("extra_cache", Role::kInput, *c_.extra);
    token_lists("extra_cache", "extra_indices", *c_.extra, {c_.batch, c_.s_q});
  }
  output("out", DType::kBF16, {c_.batch, c_.s_q, c_.h_q, 512});
  output("lse", DType::kFP32, {c_.batch, c_.h_q, c_.s_q});
}

void GpuInputs::sparse_prefill() {
  q({c_.s_q, c_.h_q, c_.d_qk});
  input("kv", DType::kBF16, {c_.main.rows, 1, c_.d_qk}, kMadeTokens,
        [&](const TensorView& view) { cases::fill_kv_rows(view, c_, random("kv")); });
  token_lists("kv", "indices", c_.main, {c_.s_q, 1});
  output("out", DType::kBF16, {c_.s_q, c_.h_q, 512});
  output("max_logits", DType::kFP32, {c_.s_q, c_.h_q});
  output("lse", DType::kFP32, {c_.s_q, c_.h_q});
}

void GpuInputs::fused_prefill() {
  fused_inputs();
  input("kv", DType::kBF16, {c_.main.rows, 1, 512}, kMadeTokens,
        [&](const TensorView& view) { cases::fill_kv_rows(view, c_, random("kv")); });
  token_lists("kv", "indices", c_.main, {c_.s_q, 1});
  fp8_outputs();
  output("max_logits", DType::kFP32, {c_.s_q, c_.h_q});
  output("lse", DType::kFP32, {c_.s_q, c_.h_q});
}

void GpuInputs::fused_decode() {
  fused_inputs();
  paged_cache("kv_cache", Role::kInput, c_.main);
  token_lists("kv_cache", "indices", c_.main, {c_.s_q});
  if (c_.extra) {
    paged_cache("extra_cache", Role::kInput, *c_.extra);
    token_lists("extra_cache", "extra_indices", *c_.extra, {c_.s_q});
  }
  fp8_outputs();
  output("lse", DType::kFP32, {c_.s_q, c_.h_q});
}

void GpuInputs::combine() {
  const Sizes rows = {c_.num_splits, c_.s_q, c_.h_q};
  whole_input("lse_partials", DType::kFP32, rows,
              [&](const TensorView& view) { cases::fill_normal(view, random("lse"), 2.0f); });
  whole_input("out_partials", c_.dtype, {rows[0], rows[1], rows[2], 512},
              [&](const TensorView& view) { cases::fill_normal(view, random("out"), 1.0f); });
  if (c_.op == Op::kCombinePartialsFused) {
    fp8_outputs();
  } else {
    output("out", c_.out_dtype, {c_.s_q, c_.h_q, 512});
  }
  output("lse", DType::kFP32, {c_.s_q, c_.h_q});
}

void GpuInputs::append() {
  whole_input("kv", DType::kBF16, {c_.s_q, c_.d_qk},
              [&](const TensorView& view) { cases::fill_normal(view, random("kv"), 1.0f); });
  paged_cache("kv_cache", Role::kInOut, c_.main);
  whole_input("slots", c_.dtype, {c_.s_q},
              [&](const TensorView& view) { cases::fill_slots(view, c_.main.rows, c_, random("slots")); });
  bytes_ += static_cast<double>(c_.s_q * record_bytes(c_.main.record, c_.d_qk));
}

GpuInputs::GpuInputs(const cases::Case& c, DeviceId device, uint64_t seed)
    : c_(c), device_(device), random_{cases::hash_text(cases::name(c)) + seed}, data_(c) {
  switch (c.op) {
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
      fused_decode();
      break;
    case Op::kCombinePartials:
    case Op::kCombinePartialsFused:
      combine();
      break;
    case Op::kAppendKv:
      append();
      break;
    default:
      throw std::logic_error(std::string("no benchmark of ") + cases::op_name(c.op));
  }
}

}  // namespace tilewise::bench
