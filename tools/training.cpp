#include "tools/training.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cases/random.h"
#include "cases/training.h"
#include "core/numeric.h"
#include "tools/call.h"
#include "tools/measure.h"

namespace tilewise::tools {
namespace {

constexpr double kBackwardFlops = 2.5;  // of the forward's

// A call's row; `pairs` of query and key that attend, for one head.
template <class Args>
Row measure_training(const Args& args, const std::string& shape, double pairs, double flops_of_pair,
                     const PlanOptions& options) {
  const Expectation expectation(args);
  const Plan planned = plan(args, Device::cpu(), options);
  Row row;
  row.op = planned.op();
  row.records = to_string(DType::kBF16);
  row.shape = shape;
  row.kernel = planned.kernel();
  row.milliseconds = time_call(args, options);
  row.rate = pairs * static_cast<double>(args.q.size(1)) * flops_of_pair * 1e-6 / row.milliseconds;
  row.unit = "GFLOP/s";
  row.comparison = cases::worst(expectation.judge(args));
  return row;
}

double attended_pairs(const cases::SequenceCase& c, const TensorView& q2k) {
  double pairs = 0;
  for (int64_t q = 0; q < c.lengths_q[0]; ++q) {
    for (int64_t k = 0; k <= q; ++k) {
      if (!q2k) {
        ++pairs;
        continue;
      }
      const int32_t* list = q2k.data_as<int32_t>() + q / c.q_block * q2k.stride(0);
      pairs += std::find(list, list + c.width, k / c.kv_block) != list + c.width ? 1 : 0;
    }
  }
  return pairs;
}

// Both directions of one causal sequence; with a selection: the first block and the last two.
void add_sequence_rows(bool selected, const PlanOptions& options, std::vector<Row>& rows) {
  cases::SequenceCase c;
  c.lengths_q = c.lengths_k = {selected ? 1024 : 512};
  c.h_q = 4;
  c.h_kv = selected ? 4 : 2;
  c.d_qk = 192;
  c.causal = true;
  c.sink = cases::Sink::kFinite;
  c.selected = selected ? cases::Selected::kShared : cases::Selected::kNothing;
  cases::SequenceData data(c);
  for (int64_t row = 0; selected && row < data.q2k.size(0); ++row) {
    const auto block = static_cast<int32_t>(row);
    const int32_t list[] = {0, block - 1, block};
    std::copy_n(list, 3, data.q2k.data_as<int32_t>() + row * data.q2k.stride(0));
  }
  const double pairs = attended_pairs(c, data.q2k);
  const std::string shape = fmt::format("s{} h{}/{} d{}/{}{} sink", c.lengths_q[0], c.h_q, c.h_kv, c.d_qk,
                                        c.d_v, selected ? " blocks:3" : " causal");
  const double flops = 2.0 * static_cast<double>(c.d_qk + c.d_v);
  for (const cases::SequenceArgs& args : {data.forward(), data.backward()}) {
    std::visit(
        [&](const auto& a) {
          const bool backward = requires { a.d_out; };
          rows.push_back(
              measure_training(a, shape, pairs, backward ? kBackwardFlops * flops : flops, options));
        },
        args);
  }
}

// The gradients of a sparse_prefill_fwd.
Row token_sparse_row(const PlanOptions& options) {
  cases::Case c;
  c.op = cases::Op::kSparsePrefillFwd;
  c.s_q = 64;
  c.h_q = 64;
  c.d_qk = 576;
  c.main.width = 256;
  c.main.rows = 1024;
  cases::CaseData data = cases::make(c);
  const auto forward = std::get<SparsePrefillFwdArgs>(data.args());
  sparse_prefill_fwd(forward);
  const int64_t out_elements = forward.out.numel();
  std::vector<uint16_t> d_out(static_cast<size_t>(out_elements));
  const cases::Stream64 stream = cases::Stream64{12}.child("d_out");
  for (size_t i = 0; i < d_out.size(); ++i) d_out[i] = f32_to_bf16_bits(stream.normal(i));
  std::vector<uint16_t> dq(static_cast<size_t>(forward.q.numel()));
  std::vector<uint16_t> dkv(static_cast<size_t>(forward.kv.numel()));
  std::vector<float> kl_target(static_cast<size_t>(c.s_q * c.main.width));
  SparsePrefillBwdArgs args;
  args.d_out = {d_out.data(), DType::kBF16, {c.s_q, c.h_q, 512}};
  args.q = forward.q;
  args.kv = forward.kv;
  args.out = forward.out;
  args.lse = forward.lse;
  args.indices = forward.indices;
  args.softmax_scale = forward.softmax_scale;
  args.topk_length = forward.topk_length;
  args.dq = {dq.data(), DType::kBF16, {c.s_q, c.h_q, c.d_qk}};
  args.dkv = {dkv.data(), DType::kBF16, {forward.kv.size(0), 1, c.d_qk}};
  args.kl_target = {kl_target.data(), DType::kFP32, {c.s_q, c.main.width}};
  const double pairs = static_cast<double>(c.s_q * c.main.width);
  return measure_training(args, fmt::format("s{} h{} d{} topk{}", c.s_q, c.h_q, c.d_qk, c.main.width), pairs,
                          kBackwardFlops * 2.0 * static_cast<double>(c.d_qk + 512), options);
}

}  // namespace

std::vector<Row> run_training(const PlanOptions& options,
                              const std::function<void(const std::string&)>& step) {
  std::vector<Row> rows;
  step("dense_prefill");
  add_sequence_rows(false, options, rows);
  step("block_sparse_prefill");
  add_sequence_rows(true, options, rows);
  step("sparse_prefill_bwd");
  rows.push_back(token_sparse_row(options));
  return rows;
}

}  // namespace tilewise::tools
