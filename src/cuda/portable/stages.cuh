// The KV tiles of a block on their way through shared memory: when a tile is there, and when its stage is
// free.
//
//   records       copied as they are, decoded once they have arrived; the next tile's copies go on meanwhile
//   one stage     copied once nobody reads the last tile any more
//   more stages   tile i + kAhead is copied while tile i is worked on
//   a pair        Two row groups that share plain rows go through the tiles half a tile apart, so that one
//                 multiplies while the other weighs: the first one leads, the second one follows. Both copy
//                 their part of tile i + 1 once tile i - 1, which had its stage, was read by both.
//
//                       leaders                                followers
//   await(i)            their copies of i are there: copied    await copied (the leaders have also read
//                       await copied                           i - 1) and read[i - 1]: start copies of i + 1
//                       scores and weights of tile i
//   between_products(i) await read[i - 1]: start copies        their copies of i + 1 are there: copied
//                       of i + 1
//                       weights times values of tile i
//   end(i)                                                     read[i]
//
// `copied` and `read` are barriers in shared memory; phase i of `copied` ends when tile i + 1 has arrived.
// There are two of `read`, for even and odd tiles: followers may be done with tile i before the leaders have
// seen that they read tile i - 1, and a barrier's phases are known apart by their parity alone. Every thread
// arrives for itself: racecheck knows no other way.
#pragma once

#include <cstdint>

#include "cuda/common/ptx.cuh"
#include "cuda/portable/config.h"
#include "cuda/portable/key_tiles.cuh"
#include "cuda/portable/params.h"
#include "cuda/portable/shared_layout.h"
#include "cuda/portable/source.cuh"

namespace tilewise::cuda {

template <int kDim, int kConfigRow, bool kRaw>
class TileStages {
  static constexpr ForwardConfig kConfig = kForwardConfigs[kConfigRow];
  static constexpr int kThreads = kConfig.warps * 32;
  static constexpr int kKeys = kConfig.tile_keys;
  static constexpr int kStages = kRaw ? 1 : kConfig.stages;
  static constexpr int kAhead = kRaw ? 1 : kStages - 1;  // tiles under way when the first one is awaited
  static constexpr int kValidSlots = kStages < 2 ? 2 : kStages;
  static constexpr bool kPaired = kStages > 1 && kConfig.row_groups > 1;
  static_assert(!kPaired || (kStages == 2 && kConfig.row_groups == 2));

 public:
  __device__ TileStages(const ForwardParams& params, const KeyTiles& tiles, uint8_t* shared,
                        const SharedLayout& at)
      : shared_(shared),
        at_(at),
        first_(tiles.places.begin),
        count_(tiles.places.end - tiles.places.begin),
        source_(params, tiles) {}

  // One thread, before the others begin.
  __device__ static void init(uint8_t* shared, const SharedLayout& at) {
    if constexpr (kPaired) {
      init_barrier(shared_address(shared + at.barriers), kThreads);
      init_barrier(shared_address(shared + at.barriers) + 8, kThreads / 2);
      init_barrier(shared_address(shared + at.barriers) + 16, kThreads / 2);
    }
  }

  __device__ int32_t count() const { return count_; }
  // Tile i and which of its keys there are.
  __device__ uint8_t* keys(int32_t i) const { return shared_ + at_.keys + i % kStages * (kKeys * kDim * 2); }
  __device__ uint8_t* valid(int32_t i) const { return shared_ + at_.valid + i % kValidSlots * kKeys; }

  // Starts the copies of the first tiles.
  __device__ void begin() {
    if (count() > 0) look_up(0);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (i < count()) {
        fetch(i);
        if (!kRaw && i + 1 < count()) look_up(i + 1);
      }
      commit_copies();
    }
  }

  // Returns when tile i is there for all threads of a row group, and none reads weights of the last tile any
  // more. For the first tile of a pair the caller has waited for the copies.
  __device__ void await(int32_t i) {
    if constexpr (kRaw) {
      wait_copies<0>();
      __syncthreads();  // the raw tile is there; nobody reads the last tile any more
      source_.decode(shared_ + at_.raw, shared_ + at_.keys);
      if (i + 1 < count()) look_up(i + 1);
      __syncthreads();  // the tile is there; nobody reads the raw one any more
      if (i + 1 < count()) fetch(i + 1);
      commit_copies();
    } else if constexpr (kStages == 1) {
      __syncthreads();  // nobody reads the last tile any more
      fetch(i);
      commit_copies();
      if (i + 1 < count()) look_up(i + 1);
      wait_copies<0>();
      __syncthreads();
    } else if constexpr (kPaired) {
      if (i > 0) {
        if (leads()) end_copies();
        await_phase(copied(), i - 1);
      }
      if (leads()) return;
      if (i > 0) await_read(i - 1);
      fetch_ahead(i);
    } else {
      wait_copies<kStages - 2>();
      __syncthreads();
      fetch_ahead(i);
    }
  }

  // Between the weights of tile i and their product with its values.
  __device__ void between_products(int32_t i) {
    if (!kPaired || i + 1 >= count()) return;
    if (leads()) {
      if (i > 0) await_read(i - 1);
      fetch_ahead(i);
    } else {
      end_copies();
    }
  }

  __device__ void end(int32_t i) const {
    if (kPaired && !leads() && i + 1 < count()) arrive(read(i));
  }

 private:
  __device__ static bool leads() { return threadIdx.x < kThreads / 2; }
  __device__ uint32_t copied() const { return shared_address(shared_ + at_.barriers); }
  __device__ uint32_t read(int32_t i) const { return copied() + 8 + i % 2 * 8; }
  __device__ void await_read(int32_t i) const { await_phase(read(i), i / 2); }

  __device__ void look_up(int32_t i) { source_.look_up(first_ + i); }
  __device__ void fetch(int32_t i) {
    source_.fetch(shared_address(kRaw ? shared_ + at_.raw : keys(i)), valid(i));
  }
  // Starts the copies of the tile kAhead behind tile i.
  __device__ void fetch_ahead(int32_t i) {
    const int32_t ahead = i + kAhead;
    if (ahead < count()) fetch(ahead);
    commit_copies();
    if (ahead + 1 < count()) look_up(ahead + 1);
  }
  __device__ void end_copies() const {
    wait_copies<0>();
    arrive(copied());
  }

  uint8_t* shared_;
  const SharedLayout& at_;
  const int32_t first_;  // place of the first tile
  const int32_t count_;
  KeySource<kDim, kKeys, kThreads, kRaw> source_;
};

}  // namespace tilewise::cuda
