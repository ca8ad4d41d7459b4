// The training operators at the edges of memory: nothing is read or written past a tensor, rows lie gigabytes
// apart, there are more sequences than 16 bits count.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <variant>
#include <vector>

#include "casefile/fields.h"
#include "cases/training.h"
#include "core/footprint.h"
#include "core/numeric.h"
#include "tests/errors/training_calls.h"
#include "tests/support/guarded_memory.h"

namespace tilewise::training {
namespace {

using cases::SequenceArgs;
using cases::SequenceCase;
using cases::SequenceData;
using testing::GuardedMemory;

template <class Args>
void call(const Args& args) {
  const Plan planned = plan(args, Device::cpu());
  const OwnedWorkspace workspace(planned.workspace_bytes());
  run(planned, args, workspace);
}

// Moves every tensor of a call into memory of its own beside an unmapped page.
struct Guarding {
  GuardedMemory::Guard guard;
  std::vector<GuardedMemory> memory;

  void tensor(const char*, TensorView& view, casefile::Access access) {
    if (!view) return;
    const int64_t bytes = footprint(view).extent();
    memory.emplace_back(bytes, 16, guard);
    uint8_t* data = memory.back().data();
    if (access == casefile::Access::kRead) {
      std::memcpy(data, view.data(), static_cast<size_t>(bytes));
    } else {
      std::memset(data, 0xFF, static_cast<size_t>(bytes));
    }
    view = {data, view.dtype(), view.shape(), view.strides()};
  }
  template <class T>
  void option(const char*, const T&) {}
};

template <class Args>
void expect_inside(Args args) {
  for (const auto guard : {GuardedMemory::Guard::kBehind, GuardedMemory::Guard::kBefore}) {
    Args moved = args;
    Guarding guarding{guard, {}};
    casefile::each_field(moved, guarding);
    call(moved);
    for (const GuardedMemory& memory : guarding.memory) EXPECT_TRUE(memory.slack_holds());
  }
}

TEST(TrainingMemory, NothingPastATensorIsTouched) {
  for (const DType type : {DType::kBF16, DType::kFP16}) {
    for (const cases::Selected selected : {cases::Selected::kNothing, cases::Selected::kPerHead}) {
      SequenceCase c;
      c.lengths_q = {130, 17};
      c.lengths_k = {70, 300};
      c.h_q = 2;
      c.d_qk = 192;
      c.dtype = type;
      c.causal = true;
      c.sink = cases::Sink::kFinite;
      c.selected = selected;
      SequenceData data(c);
      for (const SequenceArgs& args : {data.forward(), data.backward()}) {
        std::visit([](const auto& a) { expect_inside(a); }, args);
      }
    }
  }
  expect_inside(errors::sparse_prefill_bwd_call().args);
}

// Private zero pages, of which only those that are written take memory.
class SparseMemory {
 public:
  explicit SparseMemory(size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~SparseMemory() {
    if (mapped()) munmap(data_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;

  bool mapped() const { return data_ != MAP_FAILED; }
  uint16_t* at(int64_t element) const { return static_cast<uint16_t*>(data_) + element; }

 private:
  size_t bytes_;
  void* data_;
};

TEST(TrainingMemory, RowsMayLieGigabytesApart) {
  // Five rows, 2^30 elements apart: the last one's offset passes 2^32 elements and bytes.
  constexpr int64_t kRows = 5;
  constexpr int64_t kApart = int64_t{1} << 30;
  constexpr int64_t kPlace = 4096;  // elements from one tensor's row to the next tensor's
  const SparseMemory memory(static_cast<size_t>(kRows * kApart) * sizeof(uint16_t));
  ASSERT_TRUE(memory.mapped());
  SequenceCase c;
  c.lengths_q = {kRows};
  c.lengths_k = {kRows};
  SequenceData near(c);
  const auto forward = std::get<DensePrefillFwdArgs>(near.forward());
  const auto backward = std::get<DensePrefillBwdArgs>(near.backward());
  call(forward);
  call(backward);

  int64_t places = 0;
  const auto far_view = [&](const TensorView& view) {
    const int64_t shape[] = {kRows, 1, view.size(2)};
    const int64_t strides[] = {kApart, view.size(2), 1};
    const TensorView far(memory.at(kPlace * ++places), view.dtype(), shape, strides);
    for (int64_t i = 0; i < kRows; ++i) {
      std::memcpy(far.data_as<uint16_t>() + i * kApart, view.data_as<uint16_t>() + i * view.stride(0),
                  static_cast<size_t>(view.size(2)) * sizeof(uint16_t));
    }
    return far;
  };
  const auto expect_same = [&](const TensorView& far, const TensorView& wanted) {
    for (int64_t i = 0; i < kRows; ++i) {
      EXPECT_EQ(0, std::memcmp(far.data_as<uint16_t>() + i * kApart,
                               wanted.data_as<uint16_t>() + i * wanted.stride(0),
                               static_cast<size_t>(wanted.size(2)) * sizeof(uint16_t)))
          << i;
    }
  };
  const auto spoil = [&](const TensorView& far) {
    for (int64_t i = 0; i < kRows; ++i) far.data_as<uint16_t>()[i * kApart] = 0x7FC0;
  };
  DensePrefillFwdArgs far = forward;
  far.q = far_view(forward.q);
  far.k = far_view(forward.k);
  far.v = far_view(forward.v);
  far.out = far_view(forward.out);
  spoil(far.out);
  call(far);
  expect_same(far.out, forward.out);

  DensePrefillBwdArgs gradients = backward;
  gradients.q = far.q;
  gradients.k = far.k;
  gradients.v = far.v;
  gradients.d_out = far_view(backward.d_out);
  gradients.out = far_view(backward.out);
  for (TensorView* view : {&gradients.dq, &gradients.dk, &gradients.dv}) {
    *view = far_view(*view);
    spoil(*view);
  }
  call(gradients);
  expect_same(gradients.dq, backward.dq);
  expect_same(gradients.dk, backward.dk);
  expect_same(gradients.dv, backward.dv);
}

TEST(TrainingMemory, MoreSequencesThan16BitsCount) {
  // Of one query and one key each: the key's weight is 1, so that out is v, dv is dO, and scores have no
  // gradient.
  constexpr int64_t kSequences = 70000;
  constexpr int64_t kDim = 64;
  std::vector<uint16_t> v(kSequences * kDim);
  for (size_t i = 0; i < v.size(); ++i) v[i] = f32_to_bf16_bits(static_cast<float>(i % 251));
  const std::vector<uint16_t> ones(v.size(), f32_to_bf16_bits(1.0f));
  std::vector<uint16_t> out(v.size(), 0x7FC0);
  std::vector<uint16_t> dq(out);
  std::vector<uint16_t> dk(out);
  std::vector<uint16_t> dv(out);
  std::vector<float> lse(kSequences);
  std::vector<int32_t> ends(kSequences + 1);
  for (size_t i = 0; i < ends.size(); ++i) ends[i] = static_cast<int32_t>(i);
  const auto rows = [&](const std::vector<uint16_t>& values) {
    return TensorView(values.data(), DType::kBF16, {kSequences, 1, kDim});
  };
  const auto fill = [&](auto& a) {
    a.q = a.k = rows(ones);
    a.v = rows(v);
    a.cu_seqlens_q = a.cu_seqlens_k = TensorView(ends.data(), DType::kInt32, {kSequences + 1});
    a.max_seqlen_q = a.max_seqlen_k = 1;
    a.out = rows(out);
    a.lse = TensorView(lse.data(), DType::kFP32, {kSequences, 1});
  };
  DensePrefillFwdArgs forward;
  fill(forward);
  call(forward);
  EXPECT_EQ(out, v);
  EXPECT_EQ(lse.back(), static_cast<float>(kDim));
  DensePrefillBwdArgs backward;
  fill(backward);
  backward.d_out = rows(ones);
  backward.dq = rows(dq);
  backward.dk = rows(dk);
  backward.dv = rows(dv);
  call(backward);
  EXPECT_EQ(dv, ones);
  for (const std::vector<uint16_t>* gradient : {&dq, &dk}) {
    for (const uint16_t bits : *gradient) ASSERT_NEAR(bf16_bits_to_f32(bits), 0.0f, 0.01f);
  }
}

}  // namespace
}  // namespace tilewise::training
