// Support table from the kernels' own answers.
#include "cases/support_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cases/judge.h"
#include "cases/space.h"
#include "cases/training_examples.h"
#include "cuda/kernels.h"

namespace tilewise::cases {
namespace {

// What a row of the table says an operator runs on: "v41_fp8 + v41_fp4", or a dtype where there are no
// records.
struct Kind {
  std::string text;
  Case c;
};

Case small_case(Op op) {
  Case c;
  c.op = op;
  c.s_q = 2;
  c.h_q = 2;
  c.num_splits = 2;
  if (op == Op::kAppendKv) c.dtype = DType::kInt32;
  c.main = {.page = 16, .width = 5, .rows = 16};
  return c;
}

std::vector<Kind> kinds_of(Op op) {
  std::vector<Kind> kinds;
  Case c = small_case(op);
  if (has_cache_records(op)) {
    for (const RecordChoice& choice : record_choices(op)) {
      std::string text = record_name(choice.main);
      c.d_qk = choice.d;
      c.main.record = choice.main;
      c.extra.reset();
      if (choice.extra) {
        c.extra = c.main;
        c.extra->record = *choice.extra;
        text += fmt::format(" + {}", record_name(*choice.extra));
      }
      // bf16 comes in two head sizes.
      const bool listed =
          std::any_of(kinds.begin(), kinds.end(), [&](const Kind& k) { return k.text == text; });
      if (!listed) kinds.push_back({text, c});
    }
  } else if (is_dense(op) || is_combine(op)) {
    const std::vector<DType> types = is_dense(op) ? std::vector{DType::kBF16, DType::kFP16, DType::kE4M3}
                                                  : std::vector{DType::kFP32, DType::kBF16, DType::kFP16};
    for (const DType type : types) {
      c.dtype = type;
      kinds.push_back({to_string(type), c});
    }
  } else {
    kinds.push_back({to_string(DType::kBF16), c});
  }
  return kinds;
}

/// What computes the same in the Python package flash_mla.
std::string_view compatible_name(std::string_view op) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"dense_decode", "flash_mla_with_kvcache, flash_mla_with_kvcache_fp8"},
      {"sparse_decode", "flash_mla_with_kvcache"},
      {"sparse_prefill_fwd", "flash_mla_sparse_fwd"},
      {"fused_prefill", "fused_norm_rope_attn_rope_cast.prefill"},
      {"fused_decode", "fused_norm_rope_attn_rope_cast.decode"},
      {"fused_decode_partials", "fused_norm_rope_attn_rope_cast.decode"},
      {"permute_q_b_proj", "fused_norm_rope_attn_rope_cast.permute_q_b_proj"},
      {"permute_wv_proj", "fused_norm_rope_attn_rope_cast.permute_wv_proj"},
      {"sparse_prefill_bwd", "flash_mla_sparse_bwd"},
      {"dense_prefill_fwd", "flash_attn_varlen_func"},
      {"dense_prefill_bwd", "flash_attn_varlen_func"},
      {"block_sparse_prefill_fwd", "block_sparse_prefill_fwd"},
      {"block_sparse_prefill_bwd", "block_sparse_prefill_bwd"},
      {"expand_block_selection", "expand_block_selection"},
  };
  for (const auto& [native, compatible] : kNames) {
    if (native == op) return compatible;
  }
  return "";
}

/// The cells of a row that name kernels.
struct Kernels {
  std::string cpu;
  std::string gpu;

  bool operator==(const Kernels&) const = default;
};

std::string table_line(std::string_view op, std::string_view kinds, const Kernels& kernels) {
  return fmt::format("| {} | {} | {} | {} | {} |\n", op, compatible_name(op), kinds, kernels.cpu,
                     kernels.gpu);
}

std::string names_of(const std::vector<KernelVerdict>& verdicts) {
  std::string names;
  for (const KernelVerdict& verdict : verdicts) {
    if (verdict.refusal.empty()) names += (names.empty() ? "" : ", ") + verdict.kernel;
  }
  return names.empty() ? "none" : names;
}

std::string kernels_for(const Case& c, const Device& device) {
  const CaseData data = make(c);
  return names_of(explain_case(data.args(), device));
}

Device every_instruction_set() {
  Device device;
  device.cpu_features = kCpuBaseline | kCpuSse4 | kCpuAvx2 | kCpuAvx512 | kCpuAvx512Bf16 | kCpuAmxBf16;
  return device;
}

Device h200() {
  Device device;
  device.id = {DeviceType::kCuda, 0};
  device.cpu_features = 0;
  device.cuda_capability = 90;
  device.cuda_sms = 132;
  device.cuda_shared_bytes = 232448;
  return device;
}

Kernels all_kernels_for(const Case& c) {
  return {kernels_for(c, every_instruction_set()), cuda::kBuilt ? kernels_for(c, h200()) : "cuda_portable"};
}

}  // namespace

std::string support_table() {
  std::string text =
      "| operator | in flash_mla | KV records or dtypes | CPU kernels | GPU kernels: run on an H200 (machine "
      "code "
      "for sm_90), only compiled for A100 (sm_80) and, as PTX, for later GPUs |\n"
      "|---|---|---|---|---|\n";
  for (const Op op : all_ops()) {
    std::vector<std::pair<Kernels, std::string>> rows;  // and kinds
    for (const Kind& kind : kinds_of(op)) {
      const Kernels kernels = all_kernels_for(kind.c);
      const auto row =
          std::find_if(rows.begin(), rows.end(), [&](const auto& r) { return r.first == kernels; });
      if (row == rows.end()) {
        rows.emplace_back(kernels, kind.text);
      } else {
        row->second += ", " + kind.text;
      }
    }
    for (const auto& [kernels, kinds] : rows) text += table_line(op_name(op), kinds, kernels);
  }
  for (const TrainingExample& example : training_examples()) {
    text += table_line(operator_name(example.args), example.types,
                       {names_of(explain_any(example.args, every_instruction_set())), "none"});
  }
  for (const PlainOperator& op : kPlainOperators) {
    text +=
        table_line(op.name, to_string(op.type),
                   {plain_kernel(DeviceType::kCpu), op.on_gpu ? plain_kernel(DeviceType::kCuda) : "none"});
  }
  return text;
}

}  // namespace tilewise::cases
