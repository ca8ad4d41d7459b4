// The oracle of the attention operators: each argument struct comes down to the same plain problem.
#include "reference/attention.h"

#include <functional>
#include <optional>
#include <type_traits>

#include "reference/attend.h"
#include "reference/dequant.h"
#include "reference/rope.h"
#include "reference/views.h"

namespace tilewise::reference {
namespace {

constexpr int64_t kHeadsAtOnce = 32;

// What the operators differ in. The functions are called for any (request, query token), from several
// threads.
struct Problem {
  int64_t batch = 1;
  int64_t s_q = 0;
  int64_t h_q = 0;
  int64_t h_kv = 1;
  int64_t d_qk = 0;
  int64_t d_v = 0;
  float softmax_scale = 1.0f;
  float descale_q = 1.0f;
  float descale_k = 1.0f;
  std::function<void(int64_t b, int64_t s, int64_t h, float* q)> read_query;
  std::function<void(int64_t b, int64_t s, int64_t kv_head, KeyRows& keys)> gather;
  TensorView sink;
  TensorView sink_bias;
  bool with_indexer = false;
  // The fused operators alone.
  std::optional<float> q_norm_eps;
  TensorView positions;
  TensorView cos_sin;
};

// Consecutive query heads of one token that share a KV head.
struct HeadRange {
  int64_t b;
  int64_t s;
  int64_t kv_head;
  int64_t first;
  int64_t count;
};

std::vector<HeadRange> head_ranges(const Problem& p) {
  std::vector<HeadRange> ranges;
  const int64_t group = p.h_q / p.h_kv;
  for (int64_t b = 0; b < p.batch; ++b) {
    for (int64_t s = 0; s < p.s_q; ++s) {
      for (int64_t kv_head = 0; kv_head < p.h_kv; ++kv_head) {
        for (int64_t h = 0; h < group; h += kHeadsAtOnce) {
          ranges.push_back({b, s, kv_head, kv_head * group + h, std::min(kHeadsAtOnce, group - h)});
        }
      }
    }
  }
  return ranges;
}

template <class Policy>
void load_queries(const Problem& p, const HeadRange& range, const Rotation* rotation,
                  HeadGroup<Policy>& heads) {
  using Real = typename Policy::Real;
  std::vector<float> q(static_cast<size_t>(p.d_qk));
  for (int64_t i = 0; i < range.count; ++i) {
    p.read_query(range.b, range.s, range.first + i, q.data());
    Real& scale = heads.scale[static_cast<size_t>(i)];
    scale =
        static_cast<Real>(p.softmax_scale) * static_cast<Real>(p.descale_q) * static_cast<Real>(p.descale_k);
    if (p.q_norm_eps) scale *= rms_factor<Real>(q.data(), p.d_qk, *p.q_norm_eps);
    if (rotation != nullptr) rotate_query(*rotation, q.data());
    std::copy(q.begin(), q.end(), heads.q.begin() + i * p.d_qk);
  }
}

// What the keys of an ordinary row have of its whole weight; its sinks have the rest.
template <class Real>
Real share_of_keys(const Problem& p, int64_t head, Real lse) {
  Real share = 1;
  if (p.sink) share *= sink_factor<Real>(lse, float_at(p.sink, head));
  if (p.sink_bias) share *= std::exp(lse - log_add<Real>(lse, float_at(p.sink_bias, head)));
  return share;
}

// Normalises a head's sums and their deviation, applies the sink and writes its results.
template <class Real>
void finish_row(const Problem& p, int64_t head, const LogSum<Real>& sum, Real share, Real deviation,
                const Rotation* rotation, Real* out, int64_t row, AttentionResult& result) {
  Real lse = sum.lse();
  if (sum.kind == RowKind::kOrdinary) {
    const Real factor = static_cast<Real>(p.descale_k) * share;
    if (p.sink_bias) lse = log_add<Real>(lse, float_at(p.sink_bias, head));
    for (int64_t c = 0; c < p.d_v; ++c) out[c] = out[c] / sum.sum * factor;
    if (rotation != nullptr) rotate_back(*rotation, out);
    if (!result.sensitivity.empty()) {
      result.sensitivity[static_cast<size_t>(row)] = deviation / sum.sum * std::fabs(factor);
    }
  } else {
    std::fill(out, out + p.d_v, static_cast<Real>(sum.kind == RowKind::kLonely ? 0 : kNan));
    const double bias = p.sink_bias ? float_at(p.sink_bias, head) : -kInfinity;
    if (sum.kind == RowKind::kLonely && bias != -kInfinity) lse = static_cast<Real>(bias);
  }
  std::copy(out, out + p.d_v, result.out.begin() + row * p.d_v);
  result.lse[static_cast<size_t>(row)] = lse;
  result.max_logits[static_cast<size_t>(row)] = sum.max;
}

template <class Policy>
void attend(const Problem& p, const HeadRange& range, KeyRows& keys, HeadGroup<Policy>& heads,
            AttentionResult& result) {
  using Real = typename Policy::Real;
  keys.rows.clear();
  keys.count = 0;
  keys.leading = 0;
  p.gather(range.b, range.s, range.kv_head, keys);

  std::optional<Rotation> rotation;
  if (p.positions) rotation = rotation_of(p.positions, p.cos_sin, range.s);
  const Rotation* rotate = rotation ? &*rotation : nullptr;

  heads.resize(range.count, p.d_qk, p.d_v);
  load_queries(p, range, rotate, heads);
  heads.score(keys);
  const int64_t row = result.row(range.b, range.s, range.first);
  std::vector<LogSum<Real>> sums;
  for (int64_t i = 0; i < range.count; ++i) {
    sums.push_back(heads.sum(keys, i, keys.count));
    if (p.with_indexer)
      result.lse_indexer[static_cast<size_t>(row + i)] = heads.sum(keys, i, keys.leading).lse();
    heads.weigh(keys, i, sums.back().max);
  }
  heads.sum_values(keys);
  std::vector<Real> shares(sums.size());
  for (size_t i = 0; i < sums.size(); ++i) {
    if (sums[i].kind == RowKind::kOrdinary) {
      shares[i] = share_of_keys<Real>(p, range.first + static_cast<int64_t>(i), sums[i].lse());
    }
  }
  std::vector<Real> deviations(sums.size());
  if (!result.sensitivity.empty()) deviations = heads.deviations(keys, sums, shares);
  for (size_t i = 0; i < sums.size(); ++i) {
    const int64_t head = static_cast<int64_t>(i);
    finish_row(p, range.first + head, sums[i], shares[i], deviations[i], rotate, heads.out(head), row + head,
               result);
  }
}

template <class Policy>
AttentionResult evaluate(const Problem& p) {
  AttentionResult result;
  result.batch = p.batch;
  result.s_q = p.s_q;
  result.h_q = p.h_q;
  result.d_v = p.d_v;
  const size_t rows = static_cast<size_t>(result.rows());
  result.out.resize(rows * static_cast<size_t>(p.d_v));
  result.lse.resize(rows);
  result.max_logits.resize(rows);
  if (p.with_indexer) result.lse_indexer.resize(rows);
  if (std::is_same_v<Policy, DoubleArithmetic>) result.sensitivity.resize(rows);

  const std::vector<HeadRange> ranges = head_ranges(p);
  const int64_t num_ranges = static_cast<int64_t>(ranges.size());
#pragma omp parallel if (num_ranges > 1)
  {
    KeyRows keys;
    HeadGroup<Policy> heads;
#pragma omp for schedule(dynamic)
    for (int64_t i = 0; i < num_ranges; ++i) attend(p, ranges[static_cast<size_t>(i)], keys, heads, result);
  }
  return result;
}

AttentionResult evaluate(const Problem& p, Arithmetic arithmetic) {
  return arithmetic == Arithmetic::kDouble ? evaluate<DoubleArithmetic>(p) : evaluate<RoundedArithmetic>(p);
}

// Room for one more key; the caller fills it.
float* add_key(KeyRows& keys, int64_t d) {
  keys.rows.resize(static_cast<size_t>((keys.count + 1) * d));
  return keys.rows.data() + keys.count++ * d;
}

// The first entries of a token's list, `length` of them if given (one length an entry of its dimension).
struct TokenList {
  const int32_t* entries = nullptr;
  int64_t count = 0;
};

TokenList token_list(const TensorView& indices, int64_t offset, const TensorView& length, int64_t length_at) {
  const int64_t topk = indices.size(indices.rank() - 1);
  const int64_t count = length ? std::clamp<int64_t>(int_at(length, length_at), 0, topk) : topk;
  if (count == 0) return {};
  return {indices.data_as<int32_t>() + offset, count};
}

struct PagedCache {
  Record record;
  Pages pages;

  PagedCache(const TensorView& cache, Record wanted)
      : record(resolve_record(wanted, cache)), pages(pages_of(cache)) {}

  void gather(const TokenList& list, int64_t d, KeyRows& keys) const {
    std::vector<uint16_t> bits(static_cast<size_t>(d));
    for (int64_t i = 0; i < list.count; ++i) {
      const int64_t slot = list.entries[i];
      if (slot < 0 || slot >= pages.slots()) continue;
      decode_token(record, pages, slot, bits.data());
      std::transform(bits.begin(), bits.end(), add_key(keys, d), bf16_bits_to_f32);
    }
  }
};

// Unpaged rows [s_kv, 1, d]; the first `leading` entries of the list are counted apart.
void gather_rows(const TensorView& kv, const TokenList& list, int64_t leading, KeyRows& keys) {
  for (int64_t i = 0; i < list.count; ++i) {
    const int64_t index = list.entries[i];
    if (index < 0 || index >= kv.size(0)) continue;
    read_floats(kv, index * kv.stride(0), kv.size(2), add_key(keys, kv.size(2)));
    if (i < leading) keys.leading = keys.count;
  }
}

// Whether the query at `position` sees the key at `key`; positions count from the sequence's first key.
bool sees(int64_t position, int64_t key, bool causal, const Window& window) {
  if (causal && key > position) return false;
  if (window.left >= 0 && key < position - window.left) return false;
  return window.right < 0 || key <= position + window.right;
}

void gather_dense(const DenseDecodeArgs& args, int64_t b, int64_t s, int64_t kv_head, KeyRows& keys) {
  const TensorView& cache = args.k_cache;
  const int64_t page = cache.size(1);
  const int64_t capacity = args.block_table.size(1) * page;
  const int64_t length = std::clamp<int64_t>(int_at(args.cache_seqlens, b), 0, capacity);
  const int64_t position = length - args.q.size(1) + s;
  for (int64_t key = 0; key < length; ++key) {
    if (!sees(position, key, args.causal, args.window)) continue;
    const int64_t entry = b * args.block_table.stride(0) + key / page * args.block_table.stride(1);
    const int64_t block = args.block_table.data_as<int32_t>()[entry];
    if (block < 0 || block >= cache.size(0)) continue;
    const int64_t offset = block * cache.stride(0) + key % page * cache.stride(1) + kv_head * cache.stride(2);
    read_floats(cache, offset, cache.size(3), add_key(keys, cache.size(3)));
  }
}

// q [b, s_q, h_q, d_qk].
void read_batched_query(Problem& p, const TensorView& q) {
  p.batch = q.size(0);
  p.s_q = q.size(1);
  p.h_q = q.size(2);
  p.d_qk = q.size(3);
  p.read_query = [q](int64_t b, int64_t s, int64_t h, float* row) {
    read_floats(q, b * q.stride(0) + s * q.stride(1) + h * q.stride(2), q.size(3), row);
  };
}

Problem fused_problem(const FusedCommon& args) {
  Problem p;
  p.s_q = args.q.size(0);
  p.h_q = args.q.size(1);
  p.d_qk = p.d_v = kFusedDim;
  p.softmax_scale = args.softmax_scale;
  p.sink = args.attn_sink;
  p.q_norm_eps = args.q_norm_eps;
  p.positions = args.token_positions;
  p.cos_sin = args.cos_sin_cache;
  p.read_query = [q = args.q](int64_t, int64_t s, int64_t h, float* row) {
    constexpr int64_t kRun = 16;  // channels side by side in the permuted order
    const int64_t heads = q.size(1);
    for (int64_t c = 0; c < kFusedDim; c += kRun) {
      read_floats(q, s * q.stride(0) + c * heads + h * kRun, kRun, row + c);
    }
  };
  return p;
}

void use_paged_caches(Problem& p, const FusedDecodeCaches& caches, const TensorView& topk_length) {
  const PagedCache main(caches.kv_cache, caches.record);
  std::optional<PagedCache> extra;
  if (caches.extra_cache) extra.emplace(caches.extra_cache, caches.extra_record);
  p.gather = [=](int64_t, int64_t s, int64_t, KeyRows& keys) {
    const int64_t at = s * caches.indices.stride(0);
    main.gather(token_list(caches.indices, at, topk_length, s), kFusedDim, keys);
    if (!extra) return;
    const int64_t extra_at = s * caches.extra_indices.stride(0);
    extra->gather(token_list(caches.extra_indices, extra_at, caches.extra_topk_length, s), kFusedDim, keys);
  };
}

}  // namespace

AttentionResult attention(const DenseDecodeArgs& args, Arithmetic arithmetic) {
  Problem p;
  read_batched_query(p, args.q);
  p.h_kv = args.k_cache.size(2);
  p.d_v = args.d_v;
  p.softmax_scale = args.softmax_scale;
  if (args.descale_q) p.descale_q = float_at(args.descale_q, 0);
  if (args.descale_k) p.descale_k = float_at(args.descale_k, 0);
  p.sink = args.attn_sink;
  p.gather = [&args](int64_t b, int64_t s, int64_t kv_head, KeyRows& keys) {
    gather_dense(args, b, s, kv_head, keys);
  };
  return evaluate(p, arithmetic);
}

AttentionResult attention(const SparseDecodeArgs& args, Arithmetic arithmetic) {
  Problem p;
  read_batched_query(p, args.q);
  p.d_v = 512;
  p.softmax_scale = args.softmax_scale;
  p.sink = args.attn_sink;
  const PagedCache main(args.kv_cache, args.record);
  std::optional<PagedCache> extra;
  if (args.extra_cache) extra.emplace(args.extra_cache, args.extra_record);
  p.gather = [&](int64_t b, int64_t s, int64_t, KeyRows& keys) {
    const int64_t at = b * args.indices.stride(0) + s * args.indices.stride(1);
    main.gather(token_list(args.indices, at, args.topk_length, b), p.d_qk, keys);
    if (!extra) return;
    const int64_t extra_at = b * args.extra_indices.stride(0) + s * args.extra_indices.stride(1);
    extra->gather(token_list(args.extra_indices, extra_at, args.extra_topk_length, b), p.d_qk, keys);
  };
  return evaluate(p, arithmetic);
}

AttentionResult attention(const SparsePrefillFwdArgs& args, Arithmetic arithmetic) {
  Problem p;
  p.s_q = args.q.size(0);
  p.h_q = args.q.size(1);
  p.d_qk = args.q.size(2);
  p.d_v = args.d_v;
  p.softmax_scale = args.softmax_scale;
  p.sink = args.attn_sink;
  p.sink_bias = args.sink_bias;
  p.with_indexer = args.indexer_topk > 0;
  p.read_query = [q = args.q](int64_t, int64_t s, int64_t h, float* row) {
    read_floats(q, s * q.stride(0) + h * q.stride(1), q.size(2), row);
  };
  p.gather = [&args](int64_t, int64_t s, int64_t, KeyRows& keys) {
    const int64_t at = s * args.indices.stride(0);
    gather_rows(args.kv, token_list(args.indices, at, args.topk_length, s), args.indexer_topk, keys);
  };
  return evaluate(p, arithmetic);
}

AttentionResult attention(const FusedPrefillArgs& args, Arithmetic arithmetic) {
  Problem p = fused_problem(args);
  p.gather = [&args](int64_t, int64_t s, int64_t, KeyRows& keys) {
    const int64_t at = s * args.indices.stride(0);
    gather_rows(args.kv, token_list(args.indices, at, args.topk_length, s), 0, keys);
  };
  return evaluate(p, arithmetic);
}

AttentionResult attention(const FusedDecodeArgs& args, Arithmetic arithmetic) {
  Problem p = fused_problem(args);
  use_paged_caches(p, args, args.topk_length);
  return evaluate(p, arithmetic);
}

AttentionResult attention(const FusedDecodePartialsArgs& args, Arithmetic arithmetic) {
  Problem p = fused_problem(args);
  use_paged_caches(p, args, args.topk_length);
  p.sink = {};
  return evaluate(p, arithmetic);
}

}  // namespace tilewise::reference
