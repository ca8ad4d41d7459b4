// Weight permutations at a model's sizes.
#include "tools/permutes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "cases/gpu.h"
#include "cases/memory.h"
#include "cases/random.h"
#include "cases/support_table.h"
#include "tools/call.h"
#include "tools/measure.h"

namespace tilewise::tools {
namespace {

constexpr int64_t kHeads = 64;
constexpr int64_t kHeadSize = 512;
constexpr int64_t kRank = 1024;  // columns of the Q up-projection
constexpr int64_t kGroups = 8;
constexpr int64_t kColumns = 1024;  // of a group's output projection

// Memory of one call's tensors. Inputs hold random bytes.
class Tensors {
 public:
  explicit Tensors(const char* op) : random_(cases::Stream64{11}.child(op)) {}

  TensorView input(DType type, std::initializer_list<int64_t> shape) {
    const TensorView view = output(type, shape);
    const cases::Buffer& memory = buffers_.back();
    for (int64_t i = 0; i < memory.bytes(); i += 8) {
      const uint64_t bits = random_.bits(drawn_++);
      std::memcpy(memory.data() + i, &bits, static_cast<size_t>(std::min<int64_t>(8, memory.bytes() - i)));
    }
    return view;
  }
  TensorView output(DType type, std::initializer_list<int64_t> shape) {
    const int64_t bytes = TensorView(nullptr, type, shape).numel() * size_of(type);
    buffers_.emplace_back(bytes, 0);
    bytes_ += bytes;
    return {buffers_.back().data(), type, shape};
  }
  int64_t bytes() const { return bytes_; }

 private:
  cases::Stream64 random_;
  uint64_t drawn_ = 0;
  std::vector<cases::Buffer> buffers_;
  int64_t bytes_ = 0;
};

double time_on(const Device& device, const CaseArgs& args) {
  if (device.id.type == DeviceType::kCpu) return time_call(args, {});
  cases::GpuMirror mirror(args, device, 0);
  return time_on_gpu(mirror, operator_name(args), [&] { mirror.run(); });
}

Row measure_call(const Device& device, const CaseArgs& args, const std::string& shape, int64_t bytes) {
  const Expectation expectation(args);
  Row row;
  row.op = operator_name(args);
  row.records = to_string(DType::kE4M3);
  row.shape = shape;
  row.kernel = cases::plain_kernel(device.id.type);
  row.milliseconds = time_on(device, args);
  row.rate = static_cast<double>(bytes) * 1e-6 / std::max(row.milliseconds, 1e-6);
  row.unit = "GB/s";
  row.comparison = cases::worst(expectation.judge(args));
  return row;
}

TensorView transposed(const TensorView& matrix) {
  const int64_t shape[] = {matrix.size(1), matrix.size(0)};
  const int64_t strides[] = {1, matrix.size(1)};
  return {matrix.data(), matrix.dtype(), shape, strides};
}

Row permute_q_b(const Device& device) {
  PermuteQBProjArgs args;
  args.h_q = kHeads;
  args.d_q = kHeadSize;
  const int64_t rows = kHeads * kHeadSize;
  const int64_t words = kRank / 128;  // of four scales of 32 columns
  Tensors tensors("permute_q_b_proj");
  args.weight = tensors.input(DType::kE4M3, {rows, kRank});
  args.scales = transposed(tensors.input(DType::kInt32, {words, rows}));
  args.weight_out = tensors.output(DType::kE4M3, {rows, kRank});
  args.scales_out = transposed(tensors.output(DType::kInt32, {words, rows}));
  return measure_call(device, args, fmt::format("h{} d{} r{}", kHeads, kHeadSize, kRank), tensors.bytes());
}

Row permute_wv(const Device& device) {
  PermuteWvProjArgs args;
  args.group_size = kHeads / kGroups;
  args.d_o = kHeadSize;
  const int64_t width = args.group_size * kHeadSize;
  Tensors tensors("permute_wv_proj");
  args.weight = tensors.input(DType::kE4M3, {kGroups, kColumns, width});
  args.scales = tensors.input(DType::kInt32, {kGroups, kColumns, width / 128});
  args.weight_out = tensors.output(DType::kE4M3, {kGroups, kColumns, width});
  args.scales_out = tensors.output(DType::kInt32, {kGroups, kColumns, width / 128});
  return measure_call(device, args,
                      fmt::format("g{} n{} h{} d{}", kGroups, kColumns, args.group_size, kHeadSize),
                      tensors.bytes());
}

}  // namespace

std::vector<Row> run_permutes(const Device& device, const std::function<void(const std::string&)>& step) {
  std::vector<Row> rows;
  step("permute_q_b_proj");
  rows.push_back(permute_q_b(device));
  step("permute_wv_proj");
  rows.push_back(permute_wv(device));
  return rows;
}

}  // namespace tilewise::tools
