// Comparison of a case's outputs with the oracle.
#include "cases/judge.h"

#include <fmt/format.h>

#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "cases/gpu.h"
#include "core/kernel_table.h"
#include "reference/combine.h"
#include "reference/dequant.h"
#include "reference/fused_cast.h"
#include "reference/views.h"

namespace tilewise::cases {
namespace {

using reference::Arithmetic;
using reference::AttentionResult;
using reference::Comparison;

template <class T>
constexpr bool kIsCombine = std::is_base_of_v<CombineCommon, T>;
template <class T>
constexpr bool kIsKvMove = std::is_same_v<T, QuantizeKvArgs> || std::is_same_v<T, DequantizeKvArgs> ||
                           std::is_same_v<T, AppendKvArgs>;

template <class T>
AttentionResult answer(const T& args, Arithmetic arithmetic) {
  if constexpr (kIsCombine<T>) {
    return reference::combine(args, arithmetic);
  } else {
    return reference::attention(args, arithmetic);
  }
}

const Operand& written(const CaseData& data) {
  for (const Operand& o : data.operands()) {
    if (o.role != Role::kInput) return o;
  }
  throw std::logic_error("a case without an output");
}

// What the output's memory, from its first element on, held before the call.
std::span<const uint8_t> old_memory(const Operand& o) {
  return std::span(o.initial).subspan(static_cast<size_t>(o.memory.before()),
                                      static_cast<size_t>(o.memory.bytes()));
}

std::vector<uint8_t> moved(const QuantizeKvArgs& args, const Operand& o) {
  return reference::after_quantize(args, old_memory(o));
}

std::vector<uint8_t> moved(const AppendKvArgs& args, const Operand& o) {
  return reference::after_append(args, old_memory(o));
}

std::vector<uint8_t> moved(const DequantizeKvArgs& args, const Operand& o) {
  const std::vector<uint16_t> x = reference::dequantized(args);
  std::vector<uint8_t> memory(old_memory(o).begin(), old_memory(o).end());
  const int64_t d = args.x.size(1);
  for (int64_t row = 0; row < args.x.size(0); ++row) {
    std::copy_n(reinterpret_cast<const uint8_t*>(x.data() + row * d), 2 * d,
                memory.begin() + 2 * row * args.x.stride(0));
  }
  return memory;
}

Comparison same_bytes(const Operand& o, const std::vector<uint8_t>& expected) {
  Comparison found;
  for (size_t i = 0; i < expected.size(); ++i) {
    const unsigned got = o.memory.data()[i];
    if (got == expected[i]) continue;
    found.note_wrong(
        [&] { return fmt::format("byte {}: got 0x{:02x}, expected 0x{:02x}", i, got, expected[i]); });
  }
  return found;
}

class Judge {
 public:
  explicit Judge(const Truth& truth) : truth_(truth) {}

  void rows(const char* name, const TensorView& out) {
    if (!out) return;
    found.push_back({name, reference::compare_rows(reference::to_floats(out), truth_.exact.out,
                                                   truth_.rounded.out, truth_.exact.sensitivity,
                                                   truth_.exact.d_v, reference::output_type(out.dtype()))});
  }
  void logs(const char* name, const TensorView& out, const std::vector<double>& oracle) {
    if (out) found.push_back({name, reference::compare_logs(reference::to_floats(out), oracle)});
  }
  void decode_lse(const TensorView& lse) {
    if (lse) found.push_back({"lse", reference::compare_logs(reference::heads_last(lse), truth_.exact.lse)});
  }
  void cast(const TensorView& out_fp8, const TensorView& out_sf, int64_t n_groups) {
    if (!out_fp8) return;
    found.push_back({"out_fp8, out_sf",
                     reference::compare_fused(out_fp8, out_sf, truth_.exact, truth_.rounded, n_groups)});
  }

  void operator()(const DenseDecodeArgs& a) { decode(a); }
  void operator()(const SparseDecodeArgs& a) { decode(a); }
  void operator()(const SparsePrefillFwdArgs& a) {
    rows("out", a.out);
    logs("max_logits", a.max_logits, truth_.exact.max_logits);
    logs("lse", a.lse, truth_.exact.lse);
    logs("lse_indexer", a.lse_indexer, truth_.exact.lse_indexer);
  }
  void operator()(const FusedPrefillArgs& a) { fused(a, a.n_groups); }
  void operator()(const FusedDecodeArgs& a) { fused(a, a.n_groups); }
  void operator()(const FusedDecodePartialsArgs& a) {
    found.push_back({"partials", reference::compare_partials(a, truth_.exact, truth_.rounded)});
  }
  void operator()(const CombinePartialsArgs& a) {
    rows("out", a.out);
    logs("lse", a.lse, truth_.exact.lse);
  }
  void operator()(const CombinePartialsFusedArgs& a) {
    cast(a.out_fp8, a.out_sf, a.n_groups);
    logs("lse", a.lse, truth_.exact.lse);
  }

  std::vector<Judgement> found;

 private:
  template <class T>
  void decode(const T& a) {
    rows("out", a.out);
    decode_lse(a.lse);
  }
  void fused(const FusedOutputs& a, int64_t n_groups) {
    cast(a.out_fp8, a.out_sf, n_groups);
    rows("out_bf16", a.out_bf16);
    logs("max_logits", a.max_logits, truth_.exact.max_logits);
    logs("lse", a.lse, truth_.exact.lse);
  }

  const Truth& truth_;
};

}  // namespace

Plan plan_case(const Args& args, const Device& device, const PlanOptions& options) {
  if (device.id != DeviceId{}) {
    return std::visit([&](const auto& a) { return plan(a, device, options); }, on_device(args, device.id));
  }
  return std::visit([&](const auto& a) { return plan(a, device, options); }, args);
}

void run_case(const Plan& plan, const Args& args, Workspace workspace) {
  if (plan.state().device.id.type == DeviceType::kCuda) {
    run_on_gpu(plan, args);
    return;
  }
  std::visit([&](const auto& a) { run(plan, a, workspace); }, args);
}

std::vector<KernelVerdict> explain_case(const Args& args, const Device& device) {
  if (device.id != DeviceId{}) {
    return std::visit([&](const auto& a) { return explain(a, device); }, on_device(args, device.id));
  }
  return std::visit([&](const auto& a) { return explain(a, device); }, args);
}

Truth truth_of(const Args& args) {
  Truth truth;
  std::visit(
      [&]<class T>(const T& a) {
        if constexpr (!kIsKvMove<T>) {
          truth.exact = answer(a, Arithmetic::kDouble);
          truth.rounded = answer(a, Arithmetic::kRounded);
        }
      },
      args);
  return truth;
}

Truth truth_of(const CaseData& data) {
  const Args args = data.args();
  if (!is_kv_move(data.what().op)) return truth_of(args);
  Truth truth;
  std::visit(
      [&]<class T>(const T& a) {
        if constexpr (kIsKvMove<T>) truth.bytes = moved(a, written(data));
      },
      args);
  return truth;
}

std::vector<Judgement> judge(const Args& args, const Truth& truth) {
  Judge judge(truth);
  std::visit(
      [&]<class T>(const T& a) {
        if constexpr (!kIsKvMove<T>) judge(a);
      },
      args);
  return std::move(judge.found);
}

std::vector<Judgement> judge(const CaseData& data, const Truth& truth) {
  if (!is_kv_move(data.what().op)) return judge(data.args(), truth);
  const Operand& o = written(data);
  return {{o.name, same_bytes(o, truth.bytes)}};
}

Comparison worst(const std::vector<Judgement>& judgements) {
  Comparison all;
  for (const Judgement& j : judgements) all.merge(j.comparison, j.output);
  return all;
}

}  // namespace tilewise::cases
