// Counting of attended pairs, straight from the operators' contracts.
#include "cases/work.h"

#include <algorithm>
#include <numeric>

namespace tilewise::cases {
namespace {

int64_t int_at(const TensorView& view, int64_t i) { return view.data_as<int32_t>()[i * view.stride(0)]; }

// One cache's lists: [b, s_q, width] or, without a batch, [s_q, width] or [s_q, 1, width].
void count_lists(const CaseData& data, const char* list_name, const char* length_name,
                 std::vector<int32_t>& counts) {
  const TensorView lists = data.view(list_name);
  const TensorView lengths = data.view(length_name);
  const bool batched = data.what().op == Op::kSparseDecode;
  const int64_t width = lists.size(lists.rank() - 1);
  const auto slots = static_cast<int64_t>(counts.size());
  for (int64_t b = 0; b < (batched ? lists.size(0) : 1); ++b) {
    for (int64_t s = 0; s < data.what().s_q; ++s) {
      int64_t length = width;
      if (lengths) length = std::clamp<int64_t>(int_at(lengths, batched ? b : s), 0, width);
      const int32_t* list = lists.data_as<int32_t>() +
                            (batched ? b * lists.stride(0) + s * lists.stride(1) : s * lists.stride(0));
      for (int64_t i = 0; i < length; ++i) {
        if (list[i] >= 0 && list[i] < slots) ++counts[static_cast<size_t>(list[i])];
      }
    }
  }
}

bool sees(const Case& c, int64_t query, int64_t key, int64_t length) {
  const int64_t position = query + length - c.s_q;
  if (c.causal && key > position) return false;
  if (c.window.left >= 0 && key < position - c.window.left) return false;
  return c.window.right < 0 || key <= position + c.window.right;
}

void count_dense(const CaseData& data, std::vector<int32_t>& counts) {
  const Case& c = data.what();
  const TensorView table = data.view("block_table");
  const int64_t page = c.main.page;
  const int64_t num_blocks = data.view("k_cache").size(0);
  for (int64_t b = 0; b < c.batch; ++b) {
    const int64_t length =
        std::clamp<int64_t>(int_at(data.view("cache_seqlens"), b), 0, table.size(1) * page);
    for (int64_t key = 0; key < length; ++key) {
      const int32_t block = table.data_as<int32_t>()[b * table.stride(0) + key / page * table.stride(1)];
      if (block < 0 || block >= num_blocks) continue;
      for (int64_t s = 0; s < c.s_q; ++s) {
        if (sees(c, s, key, length)) ++counts[static_cast<size_t>(block * page + key % page)];
      }
    }
  }
}

int64_t slots_of(const TensorView& cache, bool paged) {
  return paged ? cache.size(0) * cache.size(1) : cache.size(0);
}

double bytes_of(const TensorView& view) { return static_cast<double>(view.numel() * size_of(view.dtype())); }

// Bytes of one cached token, all its heads.
double token_bytes(const TensorView& cache) {
  const int64_t slots = slots_of(cache, cache.rank() == 4);
  return slots > 0 ? bytes_of(cache) / static_cast<double>(slots) : 0.0;
}

int64_t sum(const std::vector<int32_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

bool is_cache(const std::string& name) {
  return name == "kv" || name == "kv_cache" || name == "extra_cache" || name == "k_cache";
}

const char* main_cache(Op op) {
  if (is_dense(op)) return "k_cache";
  return op == Op::kSparsePrefillFwd || op == Op::kFusedPrefill ? "kv" : "kv_cache";
}

}  // namespace

Selection selection(const CaseData& data) {
  const Case& c = data.what();
  const TensorView main = data.view(main_cache(c.op));
  Selection found;
  found.main.resize(static_cast<size_t>(slots_of(main, main.rank() == 4)));
  if (is_dense(c.op)) {
    count_dense(data, found.main);
    return found;
  }
  count_lists(data, "indices", "topk_length", found.main);
  if (data.has("extra_cache")) {
    found.extra.resize(static_cast<size_t>(slots_of(data.view("extra_cache"), true)));
    count_lists(data, "extra_indices", "extra_topk_length", found.extra);
  }
  return found;
}

Work work(const CaseData& data) {
  const Case& c = data.what();
  Work w;
  for (const Operand& o : data.operands()) {
    if (!is_attention(c.op) || !is_cache(o.name)) w.bytes += bytes_of(o.view);
  }
  if (!is_attention(c.op)) return w;
  const Selection found = selection(data);
  const int64_t main_pairs = sum(found.main);
  const int64_t extra_pairs = sum(found.extra);
  w.pairs = main_pairs + extra_pairs;
  w.flops =
      2.0 * static_cast<double>(w.pairs) * static_cast<double>(c.h_q) * static_cast<double>(c.d_qk + 512);
  // The queries of a dense_decode request share its rows; those of a sparse operator have lists of their own.
  const double reads =
      is_dense(c.op)
          ? static_cast<double>(found.main.size() -
                                static_cast<size_t>(std::count(found.main.begin(), found.main.end(), 0)))
          : static_cast<double>(main_pairs);
  w.bytes += reads * token_bytes(data.view(main_cache(c.op)));
  if (data.has("extra_cache"))
    w.bytes += static_cast<double>(extra_pairs) * token_bytes(data.view("extra_cache"));
  return w;
}

}  // namespace tilewise::cases
