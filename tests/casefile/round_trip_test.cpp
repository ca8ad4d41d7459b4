// A loaded case is the call that was saved: the same struct, the same results, the same refusals.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <limits>

#include "cases/judge.h"
#include "cases/sets.h"
#include "tests/casefile/calls.h"

namespace tilewise::casefile {
namespace {

LoadedCase through_a_file(const CaseArgs& args) {
  const Folder folder;
  save_case(folder.file("call"), args);
  return load_case(folder.file("call"));
}

TEST(RoundTrip, KeepsEveryMemberOfEveryOperator) {
  std::vector<std::string> seen;
  for (const AnyCall& call : every_call()) {
    seen.emplace_back(operator_name(call.args));
    SCOPED_TRACE(seen.back());
    const LoadedCase loaded = through_a_file(call.args);
    EXPECT_TRUE(loaded.has_data());
    EXPECT_EQ(lines_of(loaded.args()), lines_of(call.args));
    EXPECT_NO_THROW(plan_or_run(loaded.args()));
  }
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  EXPECT_EQ(seen.size(), std::variant_size_v<CaseArgs>);
}

TEST(RoundTrip, KeepsUnusualOptions) {
  errors::Call<DenseDecodeArgs> dense = errors::dense_decode_call();
  dense.args.softmax_scale = -std::numeric_limits<float>::infinity();
  dense.args.window = {-7, INT64_MAX};
  dense.args.d_v = INT64_MIN;
  dense.args.causal = true;
  dense.args.batch_invariant = true;
  EXPECT_EQ(lines_of(through_a_file(dense.args).args()), lines_of(dense.args));
  dense.args.softmax_scale = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(lines_of(through_a_file(dense.args).args()), lines_of(dense.args));
  for (const float scale : {0.1f, 1e-45f, std::numeric_limits<float>::max(), -0.0f}) {
    dense.args.softmax_scale = scale;
    const LoadedCase loaded = through_a_file(dense.args);
    EXPECT_EQ(std::get<DenseDecodeArgs>(loaded.args()).softmax_scale, scale);
    EXPECT_EQ(std::signbit(std::get<DenseDecodeArgs>(loaded.args()).softmax_scale), std::signbit(scale));
  }
  errors::Call<FusedDecodeArgs> fused = errors::fused_decode_call();
  fused.args.record = static_cast<Record>(77);
  fused.args.extra_record = Record::kAuto;
  fused.args.q_norm_eps.reset();
  EXPECT_EQ(lines_of(through_a_file(fused.args).args()), lines_of(fused.args));
}

std::vector<std::vector<uint8_t>> outputs_of(const CaseArgs& args) {
  std::vector<std::vector<uint8_t>> bits;
  each_tensor(args, [&](const char*, const TensorView& view, Access access) {
    if (access != Access::kRead) bits.push_back(elements(view));
  });
  return bits;
}

TEST(RoundTrip, GivesTheSameResults) {
  for (const cases::Op op : cases::all_ops()) {
    for (const cases::Case& c : cases::smoke_cases(op)) {
      SCOPED_TRACE(cases::name(c));
      const cases::CaseData data = cases::make(c);
      const cases::Args args = data.args();
      const CaseArgs saved = std::visit([](const auto& a) { return CaseArgs(a); }, args);
      const LoadedCase loaded = through_a_file(saved);
      ASSERT_EQ(lines_of(loaded.args()), lines_of(saved));
      std::visit(
          [&]<class T>(const T& original) {
            const Plan planned = plan(original, Device::cpu());
            const OwnedWorkspace workspace(planned.workspace_bytes());
            run(planned, original, workspace);
            run(planned, std::get<T>(loaded.args()), workspace);
          },
          args);
      const auto expected = outputs_of(saved);
      ASSERT_FALSE(expected.empty());
      EXPECT_EQ(outputs_of(loaded.args()), expected);
    }
  }
}

/// The refusal of the call, which must be that of its loaded copy.
std::string refusal_of_both(const CaseArgs& args) {
  const std::string text = text_of_error([&] { plan_or_run(args); });
  const LoadedCase loaded = through_a_file(args);
  EXPECT_EQ(lines_of(loaded.args()), lines_of(args));
  EXPECT_EQ(text_of_error([&] { plan_or_run(loaded.args()); }), text);
  return text;
}

TEST(RoundTrip, KeepsWhatIsRefused) {
  errors::Call<SparseDecodeArgs> call = errors::sparse_decode_call();
  const SparseDecodeArgs valid = call.args;
  SparseDecodeArgs& a = call.args;
  const auto view = [](const TensorView& like, std::vector<int64_t> shape, std::vector<int64_t> strides,
                       int64_t shift = 0) {
    return TensorView(like.data_as<uint8_t>() + shift, like.dtype(), shape, strides);
  };
  a.q = view(valid.q, {2, 3, 4, 512}, {6144, 2048, 512, 1}, 2);
  EXPECT_EQ(refusal_of_both(a),
            "sparse_decode: q must be memory that starts at a multiple of 16 bytes, got an address 2 bytes "
            "past one");
  a.q = view(valid.q, {2, 3, 4, 512}, {0, 2051, 512, 1});
  EXPECT_EQ(refusal_of_both(a),
            "sparse_decode: q must be of strides of whole 16 bytes, got stride(1) of 4102 bytes");
  a = valid;
  a.indices = view(valid.indices, {2, 3, 5}, {-15, 5, -1}, 19 * 4);
  EXPECT_EQ(refusal_of_both(a),
            "sparse_decode: indices must be contiguous in its last dimension, got stride(2) -1");
  a = valid;
  a.q = TensorView(nullptr, DType::kBF16, {2, 3, 4, 512});
  EXPECT_EQ(refusal_of_both(a), "sparse_decode: q must be memory, got a null pointer");
  a.q = TensorView(valid.q.data(), DType::kUnknown, {2, 3, 4, 512});
  EXPECT_EQ(
      refusal_of_both(a),
      "sparse_decode: q must be bfloat16 [b, s_q, h_q, 576 or 512], got an unknown type [2, 3, 4, 512]");
  a = valid;
  a.out = TensorView(valid.q.data_as<uint8_t>() + 16, DType::kBF16, {2, 3, 4, 512});
  EXPECT_EQ(refusal_of_both(a), "sparse_decode: out must be in memory apart from q, got an overlap");
  a = valid;
  a.out = TensorView();
  EXPECT_EQ(refusal_of_both(a), "sparse_decode: out must be given, got nothing");
}

TEST(RoundTrip, ViewsOfOneBufferKeepTheirPlaces) {
  errors::Call<SparsePrefillFwdArgs> call = errors::sparse_prefill_sink_call();
  errors::Memory memory;
  // Columns 0..575 of every row are q, the others its output.
  const TensorView all = memory.input(DType::kBF16, {3, 4, 1088});
  uint16_t* bits = all.data_as<uint16_t>();
  for (int64_t i = 0; i < all.numel(); ++i) bits[i] = static_cast<uint16_t>(i);
  const int64_t strides[] = {4 * 1088, 1088, 1};
  const int64_t q_shape[] = {3, 4, 576};
  const int64_t out_shape[] = {3, 4, 512};
  call.args.q = TensorView(bits, DType::kBF16, q_shape, strides);
  call.args.out = TensorView(bits + 576, DType::kBF16, out_shape, strides);
  const LoadedCase loaded = through_a_file(call.args);
  const auto& copy = std::get<SparsePrefillFwdArgs>(loaded.args());
  EXPECT_EQ(lines_of(loaded.args()), lines_of(call.args));
  EXPECT_EQ(copy.out.data_as<uint16_t>() - copy.q.data_as<uint16_t>(), 576);
  EXPECT_EQ(elements(copy.out), std::vector<uint8_t>(size_t{3} * 4 * 512 * 2, 0xFF))
      << "outputs begin as NaN";
}

TEST(RoundTrip, ACopyKeepsTheMemory) {
  errors::Call<QuantizeKvArgs> call = errors::quantize_kv_call();
  auto first = std::make_unique<LoadedCase>(through_a_file(call.args));
  const LoadedCase second = *first;
  first.reset();
  EXPECT_EQ(lines_of(second.args()), lines_of(call.args));
}

TEST(Save, RefusesWhatItCannotStore) {
  const Folder folder;
  const std::string path = folder.file("call");
  errors::Call<QuantizeKvArgs> call = errors::quantize_kv_call();
  EXPECT_EQ(
      text_of_error([&] { save_case(folder.file("none/call"), call.args); }),
      "save_case: " + folder.file("none/call") + ": file must be writable, got No such file or directory");
  EXPECT_EQ(text_of_error([&] { save_case(folder.path(), call.args); }),
            "save_case: " + folder.path() + ": file must be writable, got Is a directory");

  QuantizeKvArgs elsewhere = call.args;
  elsewhere.x = TensorView(call.args.x.data(), DType::kBF16, {10, 576}, DeviceId{DeviceType::kCuda, 1});
  EXPECT_EQ(text_of_error([&] { save_case(path, elsewhere); }),
            "save_case: " + path + ": x must be on cpu, got cuda:1");

  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* nothing = mmap(nullptr, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(nothing, MAP_FAILED);
  QuantizeKvArgs unreadable = call.args;
  unreadable.x = TensorView(nothing, DType::kBF16, {1, 576});
  EXPECT_EQ(text_of_error([&] { save_case(path, unreadable); }),
            "save_case: " + path + ": tensors must be readable memory, got Bad address");
  munmap(nothing, page);
  EXPECT_EQ(folder.names(), std::vector<std::string>()) << "nothing is left behind";
}

TEST(Save, ReplacesAFile) {
  const Folder folder;
  const std::string path = folder.file("call");
  write_file(path, std::string(1 << 20, 'x'));
  errors::Call<AppendKvArgs> call = errors::append_kv_call();
  save_case(path, call.args);
  EXPECT_EQ(lines_of(load_case(path).args()), lines_of(call.args));
}

}  // namespace
}  // namespace tilewise::casefile
