// KV rows into cache records and back on the CPU.
#include "cpu/kv_move.h"

#include <algorithm>
#include <vector>

#include "cpu/isa.h"

namespace tilewise::cpu {
namespace {

int64_t slot_of(const KvMoveProblem& problem, int64_t row) {
  const int64_t at = row * problem.slot_stride;
  return problem.shape.slot_dtype == DType::kInt64 ? static_cast<const int64_t*>(problem.slots)[at]
                                                   : static_cast<const int32_t*>(problem.slots)[at];
}

class KvMoveKernel final : public Kernel<KvMoveFamily> {
 public:
  explicit KvMoveKernel(const Isa& isa) : isa_(isa) {}

  const std::string& name() const override { return isa_.kernel; }
  std::optional<std::string> refusal(const KvMoveShape&, const Device& device) const override {
    return isa_refusal(isa_, device);
  }
  RowsPlan plan(const KvMoveShape& shape, const Device& device, Ledger&) const override {
    const int64_t rows = shape.move == KvMove::kAppend ? shape.n : shape.num_blocks * shape.page;
    return {useful_threads(device.threads, rows)};
  }

  void run(const KvMoveProblem& problem, const RowsPlan& plan, const RunPlace&) const override {
    switch (problem.shape.move) {
      case KvMove::kQuantize:
        return quantize(problem, plan.threads);
      case KvMove::kDequantize:
        return dequantize(problem, plan.threads);
      case KvMove::kAppend:
        return append(problem, plan.threads);
    }
  }

 private:
  static formats::RecordSpec spec_of(const KvMoveShape& shape) {
    return formats::record_spec(shape.record, static_cast<int32_t>(shape.d));
  }

  void encode(const KvMoveProblem& problem, const formats::RecordSpec& spec, const BF16* x,
              int64_t slot) const {
    const KvMoveShape& shape = problem.shape;
    isa_.encode->record(spec, x, problem.pages + slot / shape.page * problem.block_stride, shape.page,
                        slot % shape.page);
  }

  void quantize(const KvMoveProblem& problem, int threads) const {
    const KvMoveShape& shape = problem.shape;
    const formats::RecordSpec spec = spec_of(shape);
    const std::vector<BF16> zeros(static_cast<size_t>(shape.d), BF16{0});
    const int64_t slots = shape.num_blocks * shape.page;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t slot = 0; slot < slots; ++slot) {
      const BF16* x =
          slot < shape.n ? reinterpret_cast<const BF16*>(problem.x) + slot * problem.x_stride : zeros.data();
      encode(problem, spec, x, slot);
    }
  }

  void dequantize(const KvMoveProblem& problem, int threads) const {
    const KvMoveShape& shape = problem.shape;
    const formats::RecordSpec spec = spec_of(shape);
    const int64_t slots = shape.num_blocks * shape.page;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t slot = 0; slot < slots; ++slot) {
      const RowRef row{problem.pages + slot / shape.page * problem.block_stride, slot % shape.page};
      isa_.decode->record(spec, shape.page, &row, 1,
                          reinterpret_cast<BF16*>(problem.x) + slot * problem.x_stride, problem.x_stride);
    }
  }

  /// Threads own slots, and each takes the rows in order: of equal slots the last row wins.
  void append(const KvMoveProblem& problem, int owners) const {
    const KvMoveShape& shape = problem.shape;
    const formats::RecordSpec spec = spec_of(shape);
#pragma omp parallel for num_threads(owners) schedule(static)
    for (int64_t owner = 0; owner < owners; ++owner) {
      for (int64_t row = 0; row < shape.n; ++row) {
        const int64_t slot = slot_of(problem, row);
        if (slot < 0 || slot >= shape.num_blocks * shape.page || slot % owners != owner) continue;
        encode(problem, spec, reinterpret_cast<const BF16*>(problem.x) + row * problem.x_stride, slot);
      }
    }
  }

  const Isa& isa_;
};

}  // namespace

KernelTable<KvMoveFamily> kv_move_kernels() { return table_of_isas<KvMoveFamily, KvMoveKernel>(isas()); }

}  // namespace tilewise::cpu
