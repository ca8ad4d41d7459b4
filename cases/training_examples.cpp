#include "cases/training_examples.h"

#include <variant>

namespace tilewise::cases {
namespace {

// Hands out addresses that no tensor has. Checks and plans read no tensor.
class Nowhere {
 public:
  explicit Nowhere(DeviceId device) : device_(device) {}

  TensorView tensor(DType type, std::initializer_list<int64_t> shape) {
    address_ += uintptr_t{1} << 30;
    // NOLINTNEXTLINE(performance-no-int-to-ptr)
    return {reinterpret_cast<const void*>(address_), type, shape, device_};
  }

 private:
  DeviceId device_;
  uintptr_t address_ = 0;
};

template <class Args>
Args sequences(DType type, DeviceId device) {
  Nowhere nowhere(device);
  Args a;
  a.q = a.k = a.v = nowhere.tensor(type, {256, 2, 128});
  a.cu_seqlens_q = a.cu_seqlens_k = nowhere.tensor(DType::kInt32, {2});
  a.max_seqlen_q = a.max_seqlen_k = 256;
  a.causal = true;
  if constexpr (std::is_base_of_v<BlockSparseCommon, Args>) a.q2k = nowhere.tensor(DType::kInt32, {2, 1});
  a.out = nowhere.tensor(type, {256, 2, 128});
  a.lse = nowhere.tensor(DType::kFP32, {256, 2});
  if constexpr (std::is_base_of_v<VarlenGradients, Args>) {
    a.d_out = a.q;
    a.dq = nowhere.tensor(type, {256, 2, 128});
    a.dk = nowhere.tensor(type, {256, 2, 128});
    a.dv = nowhere.tensor(type, {256, 2, 128});
  }
  return a;
}

SparsePrefillBwdArgs token_lists(DeviceId device) {
  Nowhere nowhere(device);
  SparsePrefillBwdArgs a;
  a.q = a.d_out = a.out = nowhere.tensor(DType::kBF16, {4, 2, 512});
  a.kv = nowhere.tensor(DType::kBF16, {4, 1, 512});
  a.lse = nowhere.tensor(DType::kFP32, {4, 2});
  a.indices = nowhere.tensor(DType::kInt32, {4, 1, 3});
  a.dq = nowhere.tensor(DType::kBF16, {4, 2, 512});
  a.dkv = nowhere.tensor(DType::kBF16, {4, 1, 512});
  return a;
}

}  // namespace

std::vector<TrainingExample> training_examples(DeviceId device) {
  std::vector<TrainingExample> examples = {{to_string(DType::kBF16), token_lists(device)}};
  const auto add = [&]<class Args>(Args) {
    for (const DType type : {DType::kBF16, DType::kFP16}) {
      examples.push_back({to_string(type), sequences<Args>(type, device)});
    }
  };
  add(DensePrefillFwdArgs());
  add(DensePrefillBwdArgs());
  add(BlockSparsePrefillFwdArgs());
  add(BlockSparsePrefillBwdArgs());
  return examples;
}

std::vector<KernelVerdict> explain_any(const CaseArgs& args, const Device& device) {
  return std::visit(
      [&]<class T>(const T& a) -> std::vector<KernelVerdict> {
        if constexpr (requires { explain(a, device); }) {
          return explain(a, device);
        } else {
          return {};
        }
      },
      args);
}

}  // namespace tilewise::cases
