// quantize_kv, dequantize_kv, append_kv: KV rows into cache records and back. Same bits on every kernel.
#pragma once

#include <vector>

#include "tilewise/kv_format.h"
#include "tilewise/plan.h"
#include "tilewise/tensor.h"

namespace tilewise {

/// Quantises n rows into ceil(n / page) fresh pages; rows of the last page past n are written as zero rows.
struct QuantizeKvArgs {
  TensorView x;                   ///< bfloat16 [n, d]
  Record record = Record::kAuto;  ///< must be named
  /// output [ceil(n / page), page, 1, bytes] uint8, int8 or float8_e4m3fn; record bf16: bfloat16
  TensorView pages;
};

/// Reads whole pages back.
struct DequantizeKvArgs {
  TensorView pages;               ///< [num_blocks, page, 1, bytes]
  Record record = Record::kAuto;  ///< must be named
  TensorView x;                   ///< output bfloat16 [num_blocks * page, d]
};

/// Writes row i into slot slots[i] = block * page + offset. A negative slot, or one past the cache, is
/// skipped; of equal slots the last row wins. Neighbouring tokens and the gaps between blocks stay untouched.
struct AppendKvArgs {
  TensorView kv;                  ///< bfloat16 [n, d]
  TensorView cache;               ///< written, [num_blocks, page, 1, bytes]
  TensorView slots;               ///< int32 or int64 [n]
  Record record = Record::kAuto;  ///< kAuto: found from bytes and d
};

/// See dense_decode.h.
Plan plan(const QuantizeKvArgs& args, const Device& device, const PlanOptions& options = {});
Plan plan(const DequantizeKvArgs& args, const Device& device, const PlanOptions& options = {});
Plan plan(const AppendKvArgs& args, const Device& device, const PlanOptions& options = {});
void run(const Plan& plan, const QuantizeKvArgs& args, Workspace workspace, Stream stream = {});
void run(const Plan& plan, const DequantizeKvArgs& args, Workspace workspace, Stream stream = {});
void run(const Plan& plan, const AppendKvArgs& args, Workspace workspace, Stream stream = {});
void quantize_kv(const QuantizeKvArgs& args, const PlanOptions& options = {});
void dequantize_kv(const DequantizeKvArgs& args, const PlanOptions& options = {});
void append_kv(const AppendKvArgs& args, const PlanOptions& options = {});
std::vector<KernelVerdict> explain(const QuantizeKvArgs& args, const Device& device);
std::vector<KernelVerdict> explain(const DequantizeKvArgs& args, const Device& device);
std::vector<KernelVerdict> explain(const AppendKvArgs& args, const Device& device);

}  // namespace tilewise
