#include "cpu/forward/source.h"

#include <algorithm>

#include "cpu/phases.h"

namespace tilewise::cpu {
namespace {

/// Places of tokens in a cache.
class Slots {
 public:
  Slots(const CacheShape& shape, const CacheTensors& cache)
      : cache_(cache),
        plain_(shape.record == Record::kBf16),
        count_(std::min(shape.num_blocks * shape.page, kMost)),
        page_(static_cast<uint32_t>(std::min(shape.page, kMost))),
        contiguous_(cache.block_stride == shape.page * cache.row_stride) {}

  /// page is null when the slot does not exist.
  RowRef find(int32_t slot) const {
    if (slot < 0 || slot >= count_) return {nullptr, 0};
    if (plain_ && contiguous_) return {cache_.base + slot * cache_.row_stride, 0};
    // 32 bits: a division is what finding a slot costs.
    const uint32_t block = static_cast<uint32_t>(slot) / page_;
    const int64_t offset = static_cast<uint32_t>(slot) % page_;
    const uint8_t* page = cache_.base + block * cache_.block_stride;
    if (plain_) return {page + offset * cache_.row_stride, 0};
    return {page, offset};
  }

 private:
  static constexpr int64_t kMost = int64_t{1} << 31;  // more than an index can name

  const CacheTensors& cache_;
  bool plain_;
  int64_t count_;
  uint32_t page_;
  bool contiguous_;
};

}  // namespace

KeySource::KeySource(const Isa& isa, const ForwardProblem& problem, const QueryTile& tile, const KeyCut& cut,
                     visit::Range piece)
    : isa_(isa), problem_(problem), tile_(tile), cut_(cut), piece_(piece), place_(piece.begin) {
  const ForwardShape& shape = problem.shape;
  if (!shape.dense) return;
  rule_ = visit::make_mask_rule(static_cast<int32_t>(shape.s_q), static_cast<int32_t>(cut.length()),
                                shape.causal, shape.window.left, shape.window.right);
  const visit::Range queries =
      visit::queries_of_rows(tile.row_begin, tile.row_end, static_cast<int32_t>(tile.group));
  needed_ = visit::keys_seen_by_any(rule_, queries);
  // Tiles are counted from key 0, whatever the rows see: a row's sums then do not depend on its neighbours.
  const visit::IntervalVisit whole =
      visit::visit_keys(rule_, queries, kTileKeys, visit::TileOrigin::kSequence);
  visit_ = whole.slice(piece.begin / kTileKeys - whole.first_tile,
                       static_cast<int32_t>(visit::ceil_div(piece.end, kTileKeys)) - whole.first_tile);
  place_ = 0;
}

bool KeySource::next(void* rows, LoadedTile* loaded) {
  const InPhase gather(Phase::kGather);
  return problem_.shape.dense ? next_paged(rows, loaded) : next_gathered(rows, loaded);
}

bool KeySource::next_gathered(void* rows, LoadedTile* loaded) {
  const ForwardShape& shape = problem_.shape;
  count_ = 0;
  // Takes rows of one cache, whose list begins at place `first` of both together, up to place `end`.
  const auto take = [&](const CacheShape& slots, const CacheTensors& cache, int64_t first, int64_t end) {
    if (place_ < first || place_ >= end) return;
    const Slots places(slots, cache);
    const int32_t* list =
        cache.index + tile_.request * cache.index_stride_b + tile_.first_token * cache.index_stride_s;
    for (; place_ < end && count_ < kTileKeys; ++place_) {
      const RowRef ref = places.find(list[place_ - first]);
      if (ref.page != nullptr) refs_[count_++] = ref;
    }
  };
  const int64_t main_end = cut_.main_length();
  take(shape.main, problem_.main, 0, std::min<int64_t>(main_end, piece_.end));
  const int64_t from_main = count_;
  take(shape.extra, problem_.extra, main_end, piece_.end);
  if (count_ == 0) return false;
  decode(shape.main, refs_, from_main, rows);
  decode(shape.extra, refs_ + from_main, count_ - from_main,
         static_cast<BF16*>(rows) + from_main * key_step<BF16>(shape.d_qk));
  *loaded = {count_, visit::Form::kFull};
  return true;
}

bool KeySource::next_paged(void* rows, LoadedTile* loaded) {
  const CacheShape& shape = problem_.shape.main;
  const CacheTensors& cache = problem_.main;
  const int32_t* table = cache.index + tile_.request * cache.index_stride_b;
  for (; place_ < visit_.count(); ++place_) {
    const visit::Step step = visit_.at(static_cast<int32_t>(place_));
    const visit::Range keys = visit_.elements(step.tile);
    count_ = 0;
    for (int32_t key = std::max(keys.begin, needed_.begin); key < keys.end;) {
      const int64_t place = key / shape.page;
      const int64_t offset = key - place * shape.page;
      const auto end = static_cast<int32_t>(std::min<int64_t>(keys.end, key + shape.page - offset));
      const int64_t block = table[place];
      if (block < 0 || block >= shape.num_blocks) {
        key = end;
        continue;
      }
      const uint8_t* row = cache.base + block * cache.block_stride + offset * cache.row_stride +
                           tile_.kv_head * cache.head_stride;
      for (; key < end; ++key, row += cache.row_stride) {
        positions_[count_] = key;
        refs_[count_++] = {row, 0};
      }
    }
    if (count_ == 0) continue;
    decode(shape, refs_, count_, rows);
    *loaded = {count_, step.form};
    ++place_;
    return true;
  }
  return false;
}

visit::Range KeySource::columns(int64_t token) const {
  const visit::Range seen = rule_.keys(static_cast<int32_t>(token));
  const int32_t* end = positions_ + count_;
  return {static_cast<int32_t>(std::lower_bound(positions_, end, seen.begin) - positions_),
          static_cast<int32_t>(std::lower_bound(positions_, end, seen.end) - positions_)};
}

void KeySource::decode(const CacheShape& shape, const RowRef* refs, int64_t n, void* rows) const {
  const int64_t d = problem_.shape.d_qk;
  if (n == 0) return;
  const InPhase phase(Phase::kDecode);
  const int64_t step = key_step<BF16>(d);
  if (shape.record != Record::kBf16) {
    const formats::RecordSpec spec = formats::record_spec(shape.record, static_cast<int32_t>(d));
    isa_.decode->record(spec, shape.page, refs, n, static_cast<BF16*>(rows), step);
  } else if (shape.dtype == DType::kFP16) {
    isa_.decode->plain_f16(refs, n, d, static_cast<float*>(rows), key_step<float>(d));
  } else if (shape.dtype == DType::kE4M3) {
    isa_.decode->plain_e4m3(refs, n, d, static_cast<BF16*>(rows), step);
  } else {
    isa_.decode->plain_bf16(refs, n, d, static_cast<BF16*>(rows), step);
  }
}

}  // namespace tilewise::cpu
