// Calls by somebody who keeps plans: arguments are checked once, and the plan of an earlier call of the same
// shape is used again.
#pragma once

#include <cstdlib>
#include <string>
#include <string_view>
#include <unordered_map>

#include "casefile/on_error.h"
#include "core/kernel_table.h"
#include "ops/checks.h"
#include "ops/tables.h"

namespace tilewise {

inline KernelTable<Forward> kernels_for(const ForwardShape&) { return forward_kernels(); }
inline KernelTable<Combine> kernels_for(const CombineShape&) { return combine_kernels(); }
inline KernelTable<VarlenForward> kernels_for(const VarlenShape&) { return varlen_forward_kernels(); }
inline KernelTable<VarlenBackward> kernels_for(const VarlenBackwardShape&) {
  return varlen_backward_kernels();
}
inline KernelTable<SparseBackward> kernels_for(const SparseBackwardShape&) {
  return sparse_backward_kernels();
}
inline KernelTable<KvMoveFamily> kernels_for(const KvMoveShape&) { return kv_move_kernels(); }

/// Hash of the sizes that tell one call's shape from the next one's; shapes that differ elsewhere share a
/// bucket.
template <class... Sizes>
size_t hash_sizes(Sizes... sizes) {
  uint64_t hash = 0;
  ((hash = (hash ^ static_cast<uint64_t>(sizes)) * 0x9e3779b97f4a7c15u, hash ^= hash >> 29), ...);
  return static_cast<size_t>(hash);
}
inline size_t hash_shape(const ForwardShape& s) {
  return hash_sizes(s.batch, s.s_q, s.h_q, s.d_qk, s.main.num_blocks, s.main.page, s.main.width,
                    s.extra.num_blocks, s.extra.width, static_cast<int32_t>(s.epilogue));
}
inline size_t hash_shape(const CombineShape& s) {
  return hash_sizes(s.num_partials, s.s_q, s.h_q, s.d_v, s.fp8);
}
inline size_t hash_shape(const VarlenShape& s) {
  return hash_sizes(s.batch, s.total_q, s.total_k, s.max_seqlen_q, s.max_seqlen_k, s.h_q, s.d_qk, s.d_v,
                    s.selection_rows, s.selection_width);
}
inline size_t hash_shape(const SparseBackwardShape& s) {
  return hash_sizes(s.s_q, s.h_q, s.s_kv, s.d_qk, s.topk, s.has_kl_target);
}
inline size_t hash_shape(const KvMoveShape& s) {
  return hash_sizes(s.n, s.d, s.num_blocks, s.page, static_cast<int32_t>(s.move));
}

/// Plans of one operator family by shape, device and forced kernel. Not for several threads at once.
template <class F>
class PlanCache {
 public:
  const Plan& find_or_make(const typename F::Shape& shape, const Device& device) {
    const char* forced = std::getenv("TILEWISE_KERNEL");
    const std::string_view kernel = forced == nullptr ? "" : forced;
    const size_t hash = hash_shape(shape);
    const auto [first, last] = entries_.equal_range(hash);
    for (auto it = first; it != last; ++it) {
      const auto& state = static_cast<const PlanOf<F>&>(it->second.plan.state());
      if (state.shape == shape && state.device == device && it->second.kernel == kernel)
        return it->second.plan;
    }
    Plan plan = make_plan<F>(kernels_for(shape), shape, device, {});
    // Shapes that keep changing must not fill the memory; making a plan again costs microseconds.
    if (entries_.size() >= kMaxEntries) entries_.clear();
    return entries_.emplace(hash, Entry{std::string(kernel), std::move(plan)})->second.plan;
  }

 private:
  struct Entry {
    std::string kernel;  // forced by the environment when the plan was made
    Plan plan;
  };
  static constexpr size_t kMaxEntries = 1024;

  std::unordered_multimap<size_t, Entry> entries_;
};

template <class F>
PlanCache<F>& plans_of_this_thread() {
  static thread_local PlanCache<F> plans;
  return plans;
}

template <class F, class WorkspaceOf>
void run_cached(KernelTable<F>, const typename F::Problem& problem, const Device& device,
                WorkspaceOf workspace_of, Stream stream) {
  const Plan& plan = plans_of_this_thread<F>().find_or_make(problem.shape, device);
  run_plan<F>(plan, problem, workspace_of(plan.workspace_bytes()), stream);
}

/// Checks and runs, with a plan kept in this thread. `workspace_of(bytes)` returns a Workspace of at least
/// that size.
template <class Args, class WorkspaceOf>
void call_cached(const Args& args, const Device& device, WorkspaceOf workspace_of, Stream stream = {}) {
  casefile::or_saved(args, [&] {
    const auto problem = check(args, device.id);
    run_cached(kernels_for(problem.shape), problem, device, workspace_of, stream);
  });
}

/// Checks alone, for a caller who then makes other calls in this one's place.
template <class Args>
void check_call(const Args& args, DeviceId device) {
  casefile::or_saved(args, [&] { check(args, device); });
}

}  // namespace tilewise
