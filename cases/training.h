// Calls of the operators on whole sequences, forward and backward, from plain data; and their judge.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "cases/judge.h"
#include "reference/training.h"
#include "tilewise/tilewise.h"

namespace tilewise::cases {

using SequenceArgs = std::variant<DensePrefillFwdArgs, DensePrefillBwdArgs, BlockSparsePrefillFwdArgs,
                                  BlockSparsePrefillBwdArgs>;

// The oracle's answer for a call: a result or gradients, whichever it has, in double and in a good kernel's
// precision.
struct TrainingTruth {
  reference::TrainingResult exact;
  reference::TrainingResult rounded;
  reference::Gradients exact_gradients;
  reference::Gradients rounded_gradients;
};
TrainingTruth training_truth(const SequenceArgs& args);
TrainingTruth training_truth(const SparsePrefillBwdArgs& args);
// One judgement for every output.
std::vector<Judgement> judge_training(const SequenceArgs& args, const TrainingTruth& truth);
std::vector<Judgement> judge_training(const SparsePrefillBwdArgs& args, const TrainingTruth& truth);

enum class Selected {
  kNothing,  // dense_prefill
  kAll,      // block_sparse_prefill without a selection
  kShared,
  kPerHead,
};

// Sequences that attend to themselves. Their rows lie end to end, after `lead` rows that belong to none, and
// before as many.
struct SequenceCase {
  std::vector<int64_t> lengths_q = {128};
  std::vector<int64_t> lengths_k = {128};
  int64_t h_q = 1;
  int64_t h_kv = 1;
  int64_t d_qk = 128;
  int64_t d_v = 128;
  DType dtype = DType::kBF16;
  bool causal = false;
  Window window;
  Sink sink = Sink::kNone;  // kFinite and kExtreme: of sink_bias
  DType sink_dtype = DType::kFP32;
  Selected selected = Selected::kNothing;
  int64_t width = 3;  // of a selection's lists
  int64_t q_block = 128;
  int64_t kv_block = 128;
  int64_t lead = 0;
  // k and v are columns of one tensor, as are their gradients; all others have gaps between tokens.
  bool packed = false;
  float spread = 1.0f;  // of q and k: large values make weights that few keys share
};
std::string name(const SequenceCase& c);

// The case's memory. Inputs are the same for equal cases. Outputs are filled with NaN; the backward's lse and
// out are the oracle's.
class SequenceData {
 public:
  explicit SequenceData(const SequenceCase& c);

  bool block_sparse() const { return case_.selected != Selected::kNothing; }
  SequenceArgs forward();
  SequenceArgs backward();
  // Bytes of all outputs, one after the other.
  static std::vector<uint8_t> outputs_of(const SequenceArgs& args);
  static void fill_outputs(const SequenceArgs& args, uint8_t byte);

  // Views that tests spoil.
  TensorView q, k, v, d_out, cu_q, cu_k, q2k;

 private:
  template <class Args>
  Args common();
  TensorView allocate(DType type, std::vector<int64_t> shape, int64_t row_gap = 0);
  void allocate_keys(TensorView* keys, TensorView* values);
  void fill_normal(const TensorView& view, const char* label, float spread);
  void fill_selection();

  SequenceCase case_;
  std::vector<std::vector<uint8_t>> memory_;
  TensorView sink_;
  TensorView out_, lse_;  // of the oracle
  TensorView forward_out_, forward_lse_;
  TensorView dq_, dk_, dv_, d_sink_;
};

// Pairwise sets of cases for tests: CI's and the small one of sanitized builds.
std::vector<SequenceCase> sequence_cases();

}  // namespace tilewise::cases
