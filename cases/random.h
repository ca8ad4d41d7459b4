// Counter-based random numbers: value i of a stream depends on the stream's key and on i alone, so that
// threads may fill any part of a tensor and a case has the same data everywhere.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

namespace tilewise::cases {

// A bijection of 64-bit words whose output bits all depend on all input bits.
constexpr uint64_t mix_bits(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// FNV-1a.
constexpr uint64_t hash_text(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return hash;
}

struct Stream64 {
  uint64_t key = 0;

  constexpr uint64_t bits(uint64_t i) const { return mix_bits(key + (i + 1) * 0x9E3779B97F4A7C15u); }
  constexpr Stream64 child(std::string_view label) const { return {mix_bits(key ^ hash_text(label))}; }

  // In [0, n), n > 0.
  constexpr int64_t below(uint64_t i, int64_t n) const {
    return static_cast<int64_t>(bits(i) % static_cast<uint64_t>(n));
  }

  // In [0, 1).
  constexpr float uniform(uint64_t i) const { return static_cast<float>(bits(i) >> 40) * 0x1p-24f; }

  // Nearly normal, mean 0 and variance 1: the sum of four uniform 16-bit numbers.
  constexpr float normal(uint64_t i) const {
    const uint64_t b = bits(i);
    const auto sum =
        static_cast<int32_t>((b & 0xFFFFu) + ((b >> 16) & 0xFFFFu) + ((b >> 32) & 0xFFFFu) + (b >> 48));
    return static_cast<float>(sum - 2 * 0xFFFF) * (1.0f / 37837.0f);
  }
};

// A random order of 0..n-1 in no memory: a Feistel network on the smallest even number of bits that holds n,
// walked until it lands inside.
class Shuffle {
 public:
  Shuffle(Stream64 stream, int64_t n) : stream_(stream), n_(static_cast<uint64_t>(n)) {
    while ((uint64_t{1} << (2 * half_bits_)) < n_) ++half_bits_;
  }

  // i in [0, n).
  int64_t at(int64_t i) const {
    auto x = static_cast<uint64_t>(i);
    do {
      x = permute(x);
    } while (x >= n_);
    return static_cast<int64_t>(x);
  }

 private:
  uint64_t permute(uint64_t x) const {
    const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
    uint64_t left = x >> half_bits_;
    uint64_t right = x & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t next = left ^ (stream_.bits((round << 32) | right) & mask);
      left = right;
      right = next;
    }
    return (left << half_bits_) | right;
  }

  Stream64 stream_;
  uint64_t n_;
  int half_bits_ = 1;
};

}  // namespace tilewise::cases
