// Merging partial results on the CPU: a row's weights first, then its partial outputs added in order.
#include "cpu/combine.h"

#include <algorithm>

#include "cpu/forward/query.h"
#include "cpu/isa.h"
#include "softmax/state.h"

namespace tilewise::cpu {
namespace {

/// Longest row; longer ones are merged in pieces of this many columns.
constexpr int64_t kColumns = 512;

struct RowLse {
  double lse;     // natural, +inf for a lonely row
  double factor;  // what the sink leaves
  softmax::PartialState state;
};

softmax::LogBase base_of(const CombineShape& shape) {
  return shape.base2 ? softmax::LogBase::kTwo : softmax::LogBase::kE;
}

RowLse merge_lse(const CombineProblem& problem, int64_t token, int64_t head) {
  const CombineShape& shape = problem.shape;
  RowLse row{};
  for (int64_t n = 0; n < shape.num_partials; ++n) {
    softmax::add_partial(row.state, *problem.partial_lse.at(n, token, head), base_of(shape));
  }
  row.lse = softmax::merged_lse(row.state, base_of(shape));
  row.factor = shape.has_sink ? softmax::sink_factor(row.lse, problem.sink[head * problem.sink_stride]) : 1.0;
  return row;
}

/// Columns [first, first + n) of a merged row.
void merge_columns(const Isa& isa, const CombineProblem& problem, int64_t token, int64_t head,
                   const RowLse& row, int64_t first, int64_t n, float* o, float* part) {
  const CombineShape& shape = problem.shape;
  std::fill_n(o, n, 0.0f);
  // A sink that takes all the weight leaves exact zeros.
  if (softmax::is_lonely(row.state) || row.factor == 0.0) return;
  for (int64_t i = 0; i < shape.num_partials; ++i) {
    const float lse = *problem.partial_lse.at(i, token, head);
    if (softmax::is_empty_partial(lse)) continue;
    const auto weight =
        static_cast<float>(softmax::partial_weight(row.state, lse, base_of(shape)) * row.factor);
    const uint8_t* from = problem.partials.at(i, token, head) + first * size_of(shape.partial_dtype);
    isa.rows->widen(from, shape.partial_dtype, n, part);
    isa.rows->merge(o, 1.0f, part, weight, n);
  }
}

class CombineKernel final : public Kernel<Combine> {
 public:
  explicit CombineKernel(const Isa& isa) : isa_(isa) {}

  const std::string& name() const override { return isa_.kernel; }
  std::optional<std::string> refusal(const CombineShape&, const Device& device) const override {
    return isa_refusal(isa_, device);
  }
  RowsPlan plan(const CombineShape& shape, const Device& device, Ledger&) const override {
    return {useful_threads(device.threads, shape.s_q * shape.h_q)};
  }

  void run(const CombineProblem& problem, const RowsPlan& plan, const RunPlace&) const override {
    const CombineShape& shape = problem.shape;
    const int64_t rows = shape.s_q * shape.h_q;
#pragma omp parallel for num_threads(plan.threads) schedule(static)
    for (int64_t r = 0; r < rows; ++r) run_row(problem, r / shape.h_q, r % shape.h_q);
  }

 private:
  void run_row(const CombineProblem& problem, int64_t token, int64_t head) const {
    const CombineShape& shape = problem.shape;
    alignas(64) float o[kColumns];
    alignas(64) float part[kColumns];
    const RowLse row = merge_lse(problem, token, head);
    for (int64_t first = 0; first < shape.d_v; first += kColumns) {
      const int64_t n = std::min(kColumns, shape.d_v - first);
      merge_columns(isa_, problem, token, head, row, first, n, o, part);
      if (shape.fp8) {
        store_fp8_row(isa_, o, fp8_destination(problem, token, head));
      } else {
        isa_.rows->narrow(o, n, shape.out_dtype,
                          problem.out.at(0, token, head) + first * size_of(shape.out_dtype));
      }
    }
    if (problem.lse.data != nullptr) *problem.lse.at(0, token, head) = static_cast<float>(row.lse);
  }

  const Isa& isa_;
};

}  // namespace

KernelTable<Combine> combine_kernels() { return table_of_isas<Combine, CombineKernel>(isas()); }

}  // namespace tilewise::cpu
