// The data of a case: buffers filled with seeded random numbers, and the operator's argument struct that
// views them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cases/case.h"
#include "cases/memory.h"
#include "tilewise/tilewise.h"

namespace tilewise::cases {

using Args = std::variant<DenseDecodeArgs, SparseDecodeArgs, SparsePrefillFwdArgs, FusedPrefillArgs,
                          FusedDecodeArgs, FusedDecodePartialsArgs, CombinePartialsArgs,
                          CombinePartialsFusedArgs, QuantizeKvArgs, DequantizeKvArgs, AppendKvArgs>;

// Owns the tensors of one call. A copy has its own memory with the same contents.
class CaseData {
 public:
  explicit CaseData(Case c) : what_(std::move(c)) {}
  CaseData(const CaseData& other);
  CaseData(CaseData&&) noexcept = default;
  CaseData& operator=(const CaseData& other);
  CaseData& operator=(CaseData&&) noexcept = default;
  ~CaseData() = default;

  const Case& what() const { return what_; }

  // The argument struct, its views into this object's memory. To change an option, change the struct.
  Args args() const;

  // An argument's tensor, for reading and spoiling; absent from the call if there is none of that name.
  bool has(std::string_view name) const;
  Operand& operand(std::string_view name);
  TensorView view(std::string_view name) const;
  std::vector<Operand>& operands() { return operands_; }
  const std::vector<Operand>& operands() const { return operands_; }

  // Puts outputs back to what they were before the first call (NaN inside, canaries around).
  void reset_outputs();
  // Names the first output with a disturbed byte outside its elements; empty if there is none.
  std::string disturbed_output() const;
  // The bits of all outputs, to compare runs.
  std::vector<std::vector<uint8_t>> output_bits() const;
  // A number that changes when any byte of an input or of its surroundings does.
  uint64_t inputs_fingerprint() const;

 private:
  Case what_;
  std::vector<Operand> operands_;
};

// Fills a case's data. Takes milliseconds for cases of a few thousand cached tokens.
CaseData make(const Case& c);

}  // namespace tilewise::cases
