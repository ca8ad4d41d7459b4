// The forward attention kernel on mma.sync, for every GPU from compute capability 8.0 on.
//
// One block: one query tile (rows that share their keys) and one piece of its KV tiles.
//
//   warps        row_groups x column groups (config.h). A warp owns the same rows in both products: of the
//                scores it computes its share of the tile's keys, of the output its share of the 512 columns,
//                which stay in registers. All warps copy.
//   per KV tile  1 wait for the tile                  copies of later tiles go on meanwhile (stages.cuh)
//                2 scores = Q K^T                     two or four warps divide the columns of 32 keys, then
//                                                     add up (barriers 1 and up)
//                3 maximum over the column groups     barrier of the row group
//                4 weights to shared memory           barrier of the row group
//                5 output = output * rescale + P V
//   at the end   sums over the column groups; where the tile has several pieces, maximum, sum and output of
//                each row to the workspace; otherwise the rows' factors, output through shared memory, then
//                one warp a row: epilogue
//   memory       shared_layout.h
#pragma once

#include <climits>
#include <cstdint>

#include "cuda/common/ptx.cuh"
#include "cuda/portable/config.h"
#include "cuda/portable/epilogue.cuh"
#include "cuda/portable/key_tiles.cuh"
#include "cuda/portable/params.h"
#include "cuda/portable/query.cuh"
#include "cuda/portable/shared_layout.h"
#include "cuda/portable/source.cuh"
#include "cuda/portable/stages.cuh"
#include "softmax/state.h"

namespace tilewise::cuda {

template <class T, int kDim, int kConfigRow, bool kRaw>
class ForwardBlock {
  static constexpr ForwardConfig kConfig = kForwardConfigs[kConfigRow];
  using Stages = TileStages<kDim, kConfigRow, kRaw>;

 public:
  static constexpr int kThreads = kConfig.warps * 32;

  __device__ ForwardBlock(const ForwardParams& params, uint8_t* shared)
      : p_(params),
        shared_(shared),
        at_(shared_layout(kConfig, kDim, kRaw, params.raw_row_bytes)),
        tile_(*reinterpret_cast<const visit::QueryTile*>(shared + at_.tile)),
        tiles_(*reinterpret_cast<const KeyTiles*>(shared + at_.key_tiles)),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        row_group_(warp_ / kColumnGroups),
        column_group_(warp_ % kColumnGroups) {}

  __device__ void run() {
    // What the last kernel may have written is read behind the wait alone.
    if (threadIdx.x == 0 && p_.items == nullptr) place_tile(visit::quotient32(blockIdx.x, p_.max_pieces));
    await_last_kernel();
    if (threadIdx.x == 0) {
      find_work();
      Stages::init(shared_, at_);
    }
    __syncthreads();
    if (tiles_.places.begin < 0) return;
    // Read early, because the rotation's place follows from it.
    const int64_t position = p_.shape.fused ? position_of(p_, tile_.first_token) : 0;
    Stages stages(p_, tiles_, shared_, at_);
    stages.begin();
    if (p_.shape.dense) fill_limits();
    fetch_queries<kRows, kDim, kThreads>(p_, tile_, shared_ + at_.queries);
    if (p_.shape.fused) fetch_rotation(cos_sin_at(p_, position), rotation());
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    finish_queries<kRows, kDim, kThreads>(p_, tile_, shared_ + at_.queries, rotation(), scale());
    __syncthreads();
    begin_rows();
    for (int32_t i = 0; i < stages.count(); ++i) {
      const int32_t place = tiles_.places.begin + i;
      stages.await(i);
      float scores[kRowTiles][kKeyTiles][4];
      multiply_scores(stages.keys(i), scores);
      scale_and_mask(place, stages.valid(i), scores);
      weigh(scores);
      stages.between_products(i);
      accumulate(stages.keys(i));
      stages.end(i);
      if (p_.shape.indexer_topk > 0 && place + 1 == tiles_.prefix_tiles) store_indexer_lse();
    }
    if (p_.shape.indexer_topk > 0 && tiles_.prefix_tiles == 0) store_indexer_lse();
    finish();
  }

 private:
  // What the block does. It lies in shared memory, because registers are scarce and this is rarely read.
  __device__ void place_tile(int64_t index) {
    visit::QueryTiles all = p_.tiles;
    all.tile_rows = kRows;  // a constant: nothing is divided by it
    *reinterpret_cast<visit::QueryTile*>(shared_ + at_.tile) = all.at(index);
  }
  __device__ void find_work() {
    int4 item{};
    if (p_.items != nullptr) {
      item = planned_item();
      if (item.x < 0 || item.x >= p_.num_tiles || item.w >= p_.partials.slots) {
        reinterpret_cast<KeyTiles*>(shared_ + at_.key_tiles)->places = {-1, -1};
        return;
      }
      place_tile(item.x);
    }
    KeyTiles tiles = KeyTiles::of(p_, tile_, kKeys);
    if (p_.items != nullptr) {
      tiles.take_item(item);
    } else {
      const auto tile_index = static_cast<int32_t>(visit::quotient32(blockIdx.x, p_.max_pieces));
      const int32_t pieces = tiles.take_piece(p_, piece());
      tiles.slot = static_cast<int32_t>(blockIdx.x);
      if (p_.partials.cut != nullptr && piece() == 0) {
        p_.partials.cut[tile_index] = {tile_index, tiles.slot, pieces};
      }
    }
    *reinterpret_cast<KeyTiles*>(shared_ + at_.key_tiles) = tiles;
  }
  // The block's item of the caller's plan. Without a plan for these query tiles each is one piece.
  __device__ int4 planned_item() const {
    if (is_plan_for(*p_.plan_header, p_.num_tiles, kRows)) return p_.items[blockIdx.x];
    const auto tile = static_cast<int32_t>(blockIdx.x);
    return {tile < p_.num_tiles ? tile : -1, 0, INT_MAX, -1};
  }
  static_assert(sizeof(visit::QueryTile) <= kQueryTileBytes && sizeof(KeyTiles) <= kKeyTilesBytes);
  __device__ int32_t piece() const {
    return static_cast<int32_t>(visit::remainder32(blockIdx.x, p_.max_pieces));
  }

  static constexpr int kRows = kConfig.tile_rows;
  static constexpr int kKeys = kConfig.tile_keys;
  static constexpr int kColumnGroups = kConfig.warps / kConfig.row_groups;
  static constexpr int kWarpRows = kRows / kConfig.row_groups;
  static constexpr int kRowTiles = kWarpRows / 16;
  static constexpr int kWarpKeys = kKeys / kColumnGroups;
  static constexpr int kKeyTiles = kWarpKeys / 8;
  static constexpr int kWarpColumns = kValueDim / kColumnGroups;
  static constexpr int kColumnTiles = kWarpColumns / 8;
  static constexpr int kRowBytes = kDim * 2;
  static constexpr int kWeightBytes = kKeys * 2;
  static constexpr int kSplit = 32 / kWarpKeys;        // warps that score the same keys
  static constexpr int kFirstBarrierOfRowGroups = 14;  // meet_partners() has those from 1 on
  static_assert(kWarpRows % 16 == 0 && kKeyTiles * kSplit == 4 && kColumnTiles % 2 == 0);
  static_assert(kDim / 16 % kSplit == 0);

  __device__ float* scale() const { return reinterpret_cast<float*>(shared_ + at_.scale); }
  __device__ float* partial() const { return reinterpret_cast<float*>(shared_ + at_.partial); }
  __device__ float* rotation() const { return reinterpret_cast<float*>(shared_ + at_.rotation); }
  __device__ int2* limits() const { return reinterpret_cast<int2*>(shared_ + at_.limits); }

  __device__ void meet_row_group() const {
    if constexpr (kConfig.row_groups == 1) {
      __syncthreads();
    } else {
      sync_threads(kFirstBarrierOfRowGroups + row_group_, 32 * kColumnGroups);
    }
  }
  // A lane's accumulators belong to rows first_row() + 16 * m + 8 * half.
  __device__ int first_row() const { return row_group_ * kWarpRows + lane_ / 4; }

  // Which keys each row of a dense tile sees.
  __device__ void fill_limits() {
    for (int row = threadIdx.x; row < kRows; row += kThreads) {
      const visit::Range keys = row < tile_.rows() ? tiles_.rule.keys(tile_.token(row)) : visit::Range{};
      limits()[row] = {keys.begin, keys.end};
    }
  }

  __device__ void begin_rows() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        max_[m][half] = -softmax::kInfinity;
        sum_[m][half] = 0.0f;
      }
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k) output_[m][n][k] = 0.0f;
      }
    }
  }

  // Step 2. kSplit warps score 32 keys together, each over its share of the columns, so that a fragment
  // serves many products; then each hands the others' keys over, through the memory of the weights. Fragments
  // of the next 16 columns are read before those at hand are multiplied.
  __device__ void multiply_scores(const uint8_t* keys, float (&scores)[kRowTiles][kKeyTiles][4]) {
    constexpr int kSteps = kDim / 16 / kSplit;
    const int share = column_group_ % kSplit;
    float shared_scores[kSplit][kRowTiles][kKeyTiles][4];
#pragma unroll
    for (int i = 0; i < kSplit; ++i) clear(shared_scores[i]);
    // Pieces that a lane addresses repeat every 128 bytes; a share may begin in the middle of them.
    const int first = share * kSteps;
    uint32_t q_at[4];
    uint32_t k_at[4];
    const int q_row = row_group_ * kWarpRows + lane_ % 16;
    const int k_row = (column_group_ - share) * kWarpKeys + lane_ % 8 + lane_ / 16 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int step = (first + i) % 4;
      const uint32_t before = (first + i) / 4 * 128;
      q_at[i] =
          shared_address(shared_ + at_.queries) + before + swizzled<kRowBytes>(q_row, 2 * step + lane_ / 16);
      k_at[i] = shared_address(keys) + before + swizzled<kRowBytes>(k_row, 2 * step + lane_ / 8 % 2);
    }
    uint32_t a[2][kRowTiles][4];
    uint32_t b[2][2][4];
    const auto read = [&](int k) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        load_matrices(a[k % 2][m], q_at[k % 4] + k / 4 * 128 + m * 16 * kRowBytes);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        load_matrices(b[k % 2][n], k_at[k % 4] + k / 4 * 128 + n * 16 * kRowBytes);
      }
    };
    read(0);
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      if (k + 1 < kSteps) read(k + 1);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        float (&column)[kRowTiles][kKeyTiles][4] = shared_scores[n / kKeyTiles];
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          multiply_add<T>(column[m][n % kKeyTiles], a[k % 2][m], b[k % 2][n / 2][n % 2 * 2],
                          b[k % 2][n / 2][n % 2 * 2 + 1]);
        }
      }
    }
    hand_over(share, shared_scores, scores);
  }

  // scores = the sum of all warps' parts of a warp's own keys. A row tile and a partner at a time, so that
  // the parts of all warps fit into the memory of the weights.
  __device__ void hand_over(int share, const float (&parts)[kSplit][kRowTiles][kKeyTiles][4],
                            float (&scores)[kRowTiles][kKeyTiles][4]) {
    static_assert(kConfig.warps * kKeyTiles * 32 * 16 <= weight_bytes(kConfig));
    auto* memory = reinterpret_cast<float4*>(shared_ + at_.weights);
    float4* own = memory + warp_ * kKeyTiles * 32 + lane_;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k) scores[m][n][k] = part_of(share, parts, m, n, k);
      }
#pragma unroll
      for (int partner = 1; partner < kSplit; ++partner) {
        if (m > 0 || partner > 1) meet_partners();
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
          const int to = share ^ partner;
          own[32 * n] = {part_of(to, parts, m, n, 0), part_of(to, parts, m, n, 1),
                         part_of(to, parts, m, n, 2), part_of(to, parts, m, n, 3)};
        }
        meet_partners();
        const float4* other = memory + (warp_ ^ partner) * kKeyTiles * 32 + lane_;
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
          const float4 got = other[32 * n];
          scores[m][n][0] += got.x;
          scores[m][n][1] += got.y;
          scores[m][n][2] += got.z;
          scores[m][n][3] += got.w;
        }
      }
    }
  }
  // parts[i][m][n][k] without addressing registers by number.
  __device__ static float part_of(int i, const float (&parts)[kSplit][kRowTiles][kKeyTiles][4], int m, int n,
                                  int k) {
    float value = parts[0][m][n][k];
#pragma unroll
    for (int j = 1; j < kSplit; ++j) value = i == j ? parts[j][m][n][k] : value;
    return value;
  }
  // A barrier for the kSplit warps that score the same keys.
  __device__ void meet_partners() const { sync_threads(1 + warp_ / kSplit, 32 * kSplit); }

  __device__ static void clear(float (&scores)[kRowTiles][kKeyTiles][4]) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int k = 0; k < 4; ++k) scores[m][n][k] = 0.0f;
      }
    }
  }

  // Scores of keys that are not there, or not seen, become -inf.
  __device__ void scale_and_mask(int32_t place, const uint8_t* valid_keys,
                                 float (&scores)[kRowTiles][kKeyTiles][4]) const {
    const int first_column = column_group_ * kWarpKeys + lane_ % 4 * 2;
    uint32_t there[kKeyTiles];
    bool all = true;
    float factor[kRowTiles][2];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) factor[m][half] = scale()[first_row() + 16 * m + 8 * half];
    }
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      there[n] = *reinterpret_cast<const uint16_t*>(valid_keys + first_column + 8 * n);
      all = all && there[n] == 0x0101;
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int k = 0; k < 4; ++k) scores[m][n][k] *= factor[m][k / 2];
      }
    }
    if (!__all_sync(kAllLanes, all)) {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            if ((there[n] >> (8 * (k % 2)) & 1) == 0) scores[m][n][k] = -softmax::kInfinity;
          }
        }
      }
    }
    if (!p_.shape.dense) return;
    const KeyTile keys = tiles_.at(true, place);
    if (keys.form != visit::Form::kRow) return;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int2 seen = limits()[first_row() + 16 * m + 8 * half];
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            const int key = keys.begin + first_column + 8 * n + k;
            if (key < seen.x || key >= seen.y) scores[m][n][2 * half + k] = -softmax::kInfinity;
          }
        }
      }
    }
  }

  // Steps 3 and 4.
  __device__ void weigh(const float (&scores)[kRowTiles][kKeyTiles][4]) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = max_or_nan(scores[m][0][2 * half], scores[m][0][2 * half + 1]);
#pragma unroll
        for (int n = 1; n < kKeyTiles; ++n) {
          most = max_or_nan(most, max_or_nan(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        }
        most = max_or_nan(most, __shfl_xor_sync(kAllLanes, most, 1));
        most = max_or_nan(most, __shfl_xor_sync(kAllLanes, most, 2));
        if (lane_ % 4 == 0) partial()[column_group_ * kRows + first_row() + 16 * m + 8 * half] = most;
      }
    }
    meet_row_group();
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = max_[m][half];
#pragma unroll
        for (int c = 0; c < kColumnGroups; ++c) {
          most = max_or_nan(most, partial()[c * kRows + first_row() + 16 * m + 8 * half]);
        }
        // Eight rows of the warp at a time: most tiles raise the maximum of few.
        if (__any_sync(kAllLanes, !(most <= max_[m][half]))) rescale(m, half, most);
      }
    }
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row() + 16 * m + 8 * half;
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n) {
          const float low = weight_of(scores[m][n][2 * half], max_[m][half]);
          const float high = weight_of(scores[m][n][2 * half + 1], max_[m][half]);
          sum_[m][half] += low + high;
          const int column = column_group_ * kWarpKeys + 8 * n + lane_ % 4 * 2;
          *reinterpret_cast<uint32_t*>(shared_ + at_.weights + swizzled<kWeightBytes>(row, column / 8) +
                                       column % 8 * 2) = pack<T>(low, high);
        }
      }
    }
    meet_row_group();
  }

  __device__ void rescale(int m, int half, float most) {
    const float factor = weight_of(max_[m][half], most);
    max_[m][half] = most;
    sum_[m][half] *= factor;
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      output_[m][n][2 * half] *= factor;
      output_[m][n][2 * half + 1] *= factor;
    }
  }

  // Step 5.
  __device__ void accumulate(const uint8_t* keys) {
    uint32_t v_at[4];
    const int v_row = lane_ % 16;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v_at[i] = shared_address(keys) + column_group_ * kWarpColumns * 2 +
                swizzled<kRowBytes>(v_row, 2 * i + lane_ / 16);
    }
    const uint32_t weights_at = shared_address(shared_ + at_.weights);
    constexpr int kPairs = kColumnTiles / 2;
    constexpr int kSteps = kKeys / 16 * kPairs;
    uint32_t a[kRowTiles][4];
    uint32_t b[2][4];
    const auto read = [&](int i) {
      const int n = i % kPairs;
      load_matrices_transposed(b[i % 2], v_at[n % 4] + n / 4 * 128 + i / kPairs * 16 * kRowBytes);
    };
    read(0);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (i % kPairs == 0) {
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          const int row = row_group_ * kWarpRows + 16 * m + lane_ % 16;
          load_matrices(a[m], weights_at + swizzled<kWeightBytes>(row, i / kPairs * 2 + lane_ / 16));
        }
      }
      if (i + 1 < kSteps) read(i + 1);
      const int n = i % kPairs * 2;
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        multiply_add<T>(output_[m][n], a[m], b[i % 2][0], b[i % 2][1]);
        multiply_add<T>(output_[m][n + 1], a[m], b[i % 2][2], b[i % 2][3]);
      }
    }
  }

  // In partial(): the rows' sums over all lanes and column groups, then their maxima.
  __device__ void add_up_sums() {
    meet_row_group();
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float sum = sum_[m][half];
        sum += __shfl_xor_sync(kAllLanes, sum, 1);
        sum += __shfl_xor_sync(kAllLanes, sum, 2);
        if (lane_ % 4 == 0) partial()[column_group_ * kRows + first_row() + 16 * m + 8 * half] = sum;
      }
    }
    meet_row_group();
    float sum = 0.0f;
    const int row = own_row();
    if (row >= 0) {
      for (int c = 0; c < kColumnGroups; ++c) sum += partial()[c * kRows + row];
    }
    meet_row_group();
    if (row >= 0) partial()[row] = sum;
    // All column groups have the same maximum.
    if (column_group_ == 0 && lane_ % 4 == 0) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          partial()[kRows + first_row() + 16 * m + 8 * half] = max_[m][half];
        }
      }
    }
    meet_row_group();
  }
  // The row of its group's that a thread ends; below 0: none.
  static_assert(kWarpRows <= 32 * kColumnGroups);
  __device__ int own_row() const {
    const int row = column_group_ * 32 + lane_;
    return row < kWarpRows ? row_group_ * kWarpRows + row : -1;
  }

  __device__ RowPlace place_of(int row) const { return place_in(p_, tile_, row); }
  __device__ softmax::RowState state_of(int row) const { return {partial()[kRows + row], partial()[row]}; }

  __device__ void store_indexer_lse() {
    add_up_sums();
    const int row = own_row();
    if (row >= 0 && row < tile_.rows()) {
      const RowPlace place = place_of(row);
      *p_.tensors.lse_indexer.at(place.request, place.token, place.head) = softmax::finish(state_of(row)).lse;
    }
    meet_row_group();
  }

  // Of the results by rows; the factor for the row's output takes the place of its sum.
  __device__ void end_row(int row) {
    const softmax::RowState state = state_of(row);
    if (p_.shape.epilogue == Epilogue::kPartials) {
      partial()[row] = end_partial_state(p_, place_of(row), piece(), state);
    } else if (tiles_.whole) {
      partial()[row] = end_row_state(p_, place_of(row), state, true);
    } else {
      p_.partials.state[int64_t{tiles_.slot} * kRows + row] = {state.max, state.sum};
    }
  }

  __device__ void finish() {
    if (!tiles_.whole) let_next_kernel_start();
    wait_copies<0>();
    add_up_sums();
    const int own = own_row();
    if (own >= 0 && own < tile_.rows()) end_row(own);
    if (!tiles_.whole && p_.shape.epilogue != Epilogue::kPartials) {
      put_output(p_.partials.out + int64_t{tiles_.slot} * kRows * kValueDim, kValueDim);
      return;
    }
    __syncthreads();  // nobody reads keys any more
    auto* output = reinterpret_cast<float*>(shared_);
    put_output(output, kOutputStride);
    __syncthreads();
#pragma unroll 2
    for (int row = warp_; row < tile_.rows(); row += kConfig.warps) store(row, output + row * kOutputStride);
  }
  // A lane's columns of its rows, of rows `stride` floats apart.
  __device__ void put_output(float* to, int stride) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = first_row() + 16 * m + 8 * half;
        if (row >= tile_.rows()) continue;
        float* columns = to + row * stride + column_group_ * kWarpColumns + lane_ % 4 * 2;
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
          *reinterpret_cast<float2*>(columns + 8 * n) = {output_[m][n][2 * half],
                                                         output_[m][n][2 * half + 1]};
        }
      }
    }
  }

  __device__ void store(int row, const float* output) {
    RowValues<2, 8> o;
    const float factor = partial()[row];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int j = 0; j < 8; j += 4) {
        const float4 v = *reinterpret_cast<const float4*>(output + o.column(i, lane_) + j);
        o.v[i][j] = v.x;
        o.v[i][j + 1] = v.y;
        o.v[i][j + 2] = v.z;
        o.v[i][j + 3] = v.w;
      }
    }
    if (p_.shape.epilogue == Epilogue::kPartials) {
      store_partial_output(p_, place_of(row), piece(), factor, rotation(), lane_, o);
    } else {
      store_row_output(p_, place_of(row), factor, rotation(), lane_, o);
    }
  }

  const ForwardParams& p_;
  uint8_t* shared_;
  const SharedLayout at_;
  const visit::QueryTile& tile_;
  const KeyTiles& tiles_;
  const int warp_;
  const int lane_;
  const int row_group_;
  const int column_group_;
  // Of a lane's rows (see first_row); sums are over the lane's own keys.
  float max_[kRowTiles][2];
  float sum_[kRowTiles][2];
  float output_[kRowTiles][kColumnTiles][4];
};

template <class T, int kDim, int kConfigRow, bool kRaw>
__global__ void __launch_bounds__(ForwardBlock<T, kDim, kConfigRow, kRaw>::kThreads,
                                  kForwardConfigs[kConfigRow].warps == 8 ? 1 : 2)
    forward_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(128) uint8_t shared[];
  ForwardBlock<T, kDim, kConfigRow, kRaw>(params, shared).run();
}

}  // namespace tilewise::cuda
