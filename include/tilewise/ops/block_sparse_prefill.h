// block_sparse_prefill: as dense_prefill, where every block of queries attends to selected blocks of keys
// alone; and two functions that prepare selections.
#pragma once

#include <vector>

#include "tilewise/ops/dense_prefill.h"

namespace tilewise {

/// dense_prefill's arguments with a selection; d_qk/d_v is 192/128 or 128/128, and causal is the default. Row
/// i of q2k belongs to the i-th query block, the blocks of the sequences one after another; its entries are
/// key blocks, counted inside the sequence. Negative entries are pads, duplicates count once, blocks that do
/// not exist or that the mask hides contribute nothing; order, duplicates and the list's width change no bit.
/// Rows past the last query block are ignored, query blocks past the last row see nothing.
struct BlockSparseCommon : VarlenCommon {
  BlockSparseCommon() { causal = true; }

  TensorView q2k;          ///< int32 [rows, n] or [h_q, rows, n]; absent: every block
  int64_t q_block = 128;   ///< queries of a block, a multiple of 64
  int64_t kv_block = 128;  ///< keys of a block, 128 or 64
};

struct BlockSparsePrefillFwdArgs : BlockSparseCommon, VarlenOutputs {};
struct BlockSparsePrefillBwdArgs : BlockSparseCommon, VarlenGradients {};

/// See dense_decode.h.
Plan plan(const BlockSparsePrefillFwdArgs& args, const Device& device, const PlanOptions& options = {});
void run(const Plan& plan, const BlockSparsePrefillFwdArgs& args, Workspace workspace, Stream stream = {});
void block_sparse_prefill_fwd(const BlockSparsePrefillFwdArgs& args, const PlanOptions& options = {});
std::vector<KernelVerdict> explain(const BlockSparsePrefillFwdArgs& args, const Device& device);

Plan plan(const BlockSparsePrefillBwdArgs& args, const Device& device, const PlanOptions& options = {});
void run(const Plan& plan, const BlockSparsePrefillBwdArgs& args, Workspace workspace, Stream stream = {});
void block_sparse_prefill_bwd(const BlockSparsePrefillBwdArgs& args, const PlanOptions& options = {});
std::vector<KernelVerdict> explain(const BlockSparsePrefillBwdArgs& args, const Device& device);

/// Arguments of expand_block_selection, which repeats each row `factor` times: the same selection for query
/// blocks a factor smaller.
struct ExpandBlockSelectionArgs {
  TensorView q2k;      ///< int32 [rows, n] or [h_q, rows, n]
  int64_t factor = 1;  ///< at least 1

  TensorView out;  ///< int32 [rows * factor, n] or [h_q, rows * factor, n]
};

/// Arguments of invert_block_selection: which query blocks selected each key block, as compressed rows. Key
/// block j (of head h) was selected by q_blocks[row_ptr[(h,) j] .. row_ptr[(h,) j + 1]), ascending and each
/// once. Entries of q2k outside [0, num_kv_blocks) are ignored.
struct InvertBlockSelectionArgs {
  TensorView q2k;  ///< int32 [rows, n] or [h_q, rows, n]
  int64_t num_kv_blocks = 0;

  TensorView row_ptr;   ///< int32 [num_kv_blocks + 1] or [h_q, num_kv_blocks + 1]: places in q_blocks
  TensorView q_blocks;  ///< int32 [number of q2k's elements]; those past the last row_ptr are not written
};

/// On the CPU, from the calling thread alone. Throw InvalidArgument.
void expand_block_selection(const ExpandBlockSelectionArgs& args);
void invert_block_selection(const InvertBlockSelectionArgs& args);

}  // namespace tilewise
