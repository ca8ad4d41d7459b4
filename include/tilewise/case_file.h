// Case files: one call of one operator, with its tensors, in a file that anybody can run again.
//
//   save_case("call.safetensors", args);
//   LoadedCase call = load_case("call.safetensors");
//   run(plan(std::get<SparseDecodeArgs>(call.args()), device), ...);
//
// With the environment's TILEWISE_SAVE_ON_ERROR=<folder>, every call that raises (plan, run and the functions
// that do both) is saved there as <operator>-<counter>-<process id>.safetensors before the exception goes on.
// The exception's text stays as it is and the file's name is printed nowhere. Calls of more than 256 MiB of
// tensors are saved without the tensors' contents; a process saves 100 calls at most; where a file cannot be
// written, nothing happens.
#pragma once

#include <memory>
#include <string>
#include <variant>

#include "tilewise/error.h"
#include "tilewise/ops/block_sparse_prefill.h"
#include "tilewise/ops/combine.h"
#include "tilewise/ops/dense_decode.h"
#include "tilewise/ops/dense_prefill.h"
#include "tilewise/ops/fused.h"
#include "tilewise/ops/kv_cache.h"
#include "tilewise/ops/sparse_decode.h"
#include "tilewise/ops/sparse_prefill.h"

namespace tilewise {

/// The arguments of any operator.
using CaseArgs =
    std::variant<DenseDecodeArgs, SparseDecodeArgs, SparsePrefillFwdArgs, FusedPrefillArgs, FusedDecodeArgs,
                 FusedDecodePartialsArgs, CombinePartialsArgs, CombinePartialsFusedArgs, QuantizeKvArgs,
                 DequantizeKvArgs, AppendKvArgs, PermuteQBProjArgs, PermuteWvProjArgs, DensePrefillFwdArgs,
                 DensePrefillBwdArgs, BlockSparsePrefillFwdArgs, BlockSparsePrefillBwdArgs,
                 ExpandBlockSelectionArgs, InvertBlockSelectionArgs, SparsePrefillBwdArgs>;

/// The operator's name, for example "sparse_decode".
const char* operator_name(const CaseArgs& args);

/// A case file cannot be written, read or understood. The text names the file and what is wrong with it.
class CaseFileError : public Error {
 public:
  using Error::Error;
};

/// Writes the call into a file of the safetensors format, whatever is wrong with the call. docs/case-files.md
/// has the layout. Tensors that the operator reads are stored with their contents, outputs by shape and
/// strides alone. Throws CaseFileError: a tensor on another device than the CPU, memory that cannot be read,
/// a file that cannot be written (then none is left behind).
void save_case(const std::string& path, const CaseArgs& args);

/// A call and the memory of its tensors. Views have the dtypes, shapes, strides and relative places of the
/// saved call.
class LoadedCase {
 public:
  /// The argument struct, its views into this object's memory. Elements of outputs hold bytes of 0xFF.
  const CaseArgs& args() const { return args_; }
  /// Whether the tensors' contents were saved. If not, the memory must not be touched: the call can be
  /// checked, planned and explained, not run.
  bool has_data() const { return has_data_; }

  struct Memory;
  LoadedCase(const CaseArgs& args, bool has_data, std::shared_ptr<const Memory> memory)
      : args_(args), has_data_(has_data), memory_(std::move(memory)) {}

 private:
  CaseArgs args_;
  bool has_data_;
  std::shared_ptr<const Memory> memory_;
};

/// Reads a case file. Throws CaseFileError for everything that save_case would not write.
LoadedCase load_case(const std::string& path);

}  // namespace tilewise
