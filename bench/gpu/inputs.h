// A case's tensors in device memory, as large as benchmarks want them: long tensors repeat their first rows,
// which the host has made.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cases/data.h"
#include "cases/random.h"
#include "tilewise/device.h"

namespace tilewise::bench {

/// Owned device memory.
class DeviceBytes {
 public:
  explicit DeviceBytes(int64_t bytes);
  void* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::unique_ptr<void, Free> data_;
};

/// The inputs and outputs of one call on the current device, contiguous, without holes and with all lists
/// full.
class GpuInputs {
 public:
  GpuInputs(const cases::Case& c, DeviceId device, uint64_t seed);

  cases::Args args() const { return data_.args(); }
  double flops() const { return flops_; }
  double bytes() const { return bytes_; }  ///< that must move at least, as cases::Work counts them

 private:
  using Sizes = std::vector<int64_t>;
  using Fill = std::function<void(const TensorView&)>;  // of a tensor on the host

  /// `fill` makes the first `made` slices of the first dimension.
  TensorView input(const char* name, DType type, const Sizes& shape, int64_t made, const Fill& fill);
  void output(const char* name, DType type, const Sizes& shape);
  void output(const char* name, DType type, const Sizes& shape, const Sizes& strides);
  void whole_input(const char* name, DType type, const Sizes& shape, const Fill& fill);
  cases::Stream64 random(const char* name) const;

  void q(const Sizes& shape);
  void paged_cache(const char* name, cases::Role role, const cases::CacheCase& cache);
  void token_lists(const char* cache, const char* lists, const cases::CacheCase& what, Sizes shape);
  void fused_inputs();
  void fp8_outputs();
  void dense_decode();
  void sparse_decode();
  void sparse_prefill();
  void fused_prefill();
  void fused_decode();
  void combine();
  void append();

  /// Reads of cached tokens: once for each of `count` keys of `token_bytes`.
  void count_reads(double count, double token_bytes, double pairs);

  cases::Case c_;
  DeviceId device_;
  cases::Stream64 random_;
  std::vector<DeviceBytes> memory_;
  cases::CaseData data_;
  double flops_ = 0;
  double bytes_ = 0;
};

}  // namespace tilewise::bench
