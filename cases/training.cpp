// Data, sets and judge of the operators on whole sequences.
#include "cases/training.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "casefile/fields.h"
#include "casefile/runs.h"
#include "cases/random.h"
#include "cases/sets.h"
#include "core/float_value.h"
#include "reference/views.h"

namespace tilewise::cases {
namespace {

using reference::Arithmetic;

template <class T>
constexpr bool kIsBackward = requires(const T& args) { args.d_out; };
template <class T>
constexpr bool kIsTokenSparse = std::is_same_v<T, SparsePrefillBwdArgs>;

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

int64_t largest(const std::vector<int64_t>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

class GradientJudge {
 public:
  explicit GradientJudge(double cosine) : cosine_(cosine) {}

  void operator()(const char* name, const TensorView& actual, const reference::GradientTensor& exact,
                  const reference::GradientTensor& rounded) {
    if (!actual) return;
    found.push_back({name, reference::compare_gradient(reference::to_floats(actual), exact, rounded,
                                                       reference::output_type(actual.dtype()), cosine_)});
  }
  void with_cosine(double cosine) { cosine_ = cosine; }

  std::vector<Judgement> found;

 private:
  double cosine_;
};

template <class T>
TrainingTruth truth_of_call(const T& args) {
  TrainingTruth truth;
  if constexpr (kIsBackward<T>) {
    truth.exact_gradients = reference::training_backward(args, Arithmetic::kDouble);
    truth.rounded_gradients = reference::training_backward(args, Arithmetic::kRounded);
  } else {
    truth.exact = reference::training_forward(args, Arithmetic::kDouble);
    truth.rounded = reference::training_forward(args, Arithmetic::kRounded);
  }
  return truth;
}

template <class Args>
std::vector<Judgement> judge_gradients(const Args& a, const TrainingTruth& truth) {
  const reference::Gradients& exact = truth.exact_gradients;
  const reference::Gradients& rounded = truth.rounded_gradients;
  GradientJudge judge(kIsTokenSparse<Args> ? reference::kTokenSparseCosine : reference::kCosine);
  judge("dq", a.dq, exact.dq, rounded.dq);
  if constexpr (kIsTokenSparse<Args>) {
    judge("dkv", a.dkv, exact.dkv, rounded.dkv);
    judge.with_cosine(reference::kCosine);
    judge("kl_target", a.kl_target, exact.kl_target, rounded.kl_target);
  } else {
    judge("dk", a.dk, exact.dk, rounded.dk);
    judge("dv", a.dv, exact.dv, rounded.dv);
  }
  judge("d_sink", a.d_sink, exact.d_sink, rounded.d_sink);
  return judge.found;
}

template <class Args>
std::vector<Judgement> judge_result(const Args& a, const TrainingTruth& truth) {
  std::vector<Judgement> found;
  found.push_back({"out", reference::compare_rows(reference::to_floats(a.out), truth.exact.out,
                                                  truth.rounded.out, truth.exact.sensitivity, truth.exact.d_v,
                                                  reference::output_type(a.out.dtype()))});
  if (a.lse) found.push_back({"lse", reference::compare_logs(reference::to_floats(a.lse), truth.exact.lse)});
  return found;
}

// Hands every output to visit(view).
template <class Visit>
struct OutputVisitor {
  Visit visit;

  void tensor(const char*, const TensorView& view, casefile::Access access) {
    if (view && access != casefile::Access::kRead) visit(view);
  }
  template <class T>
  void option(const char*, const T&) {}
};
template <class Visit>
void each_output(SequenceArgs args, const Visit& visit) {
  OutputVisitor<Visit> visitor{visit};
  std::visit([&](auto& a) { casefile::each_field(a, visitor); }, args);
}

}  // namespace

TrainingTruth training_truth(const SequenceArgs& args) {
  return std::visit([](const auto& a) { return truth_of_call(a); }, args);
}
TrainingTruth training_truth(const SparsePrefillBwdArgs& args) { return truth_of_call(args); }

std::vector<Judgement> judge_training(const SequenceArgs& args, const TrainingTruth& truth) {
  return std::visit(
      [&]<class T>(const T& a) {
        if constexpr (kIsBackward<T>) {
          return judge_gradients(a, truth);
        } else {
          return judge_result(a, truth);
        }
      },
      args);
}
std::vector<Judgement> judge_training(const SparsePrefillBwdArgs& args, const TrainingTruth& truth) {
  return judge_gradients(args, truth);
}

std::string name(const SequenceCase& c) {
  static constexpr const char* kSelected[] = {"dense", "block_sparse:all", "block_sparse:shared",
                                              "block_sparse:per_head"};
  static constexpr const char* kSinks[] = {"", " sink", " extreme_sink"};
  std::string text = fmt::format("{} {} q:{} k:{} h:{}/{} d:{}/{}", kSelected[static_cast<int>(c.selected)],
                                 to_string(c.dtype), fmt::join(c.lengths_q, "+"), fmt::join(c.lengths_k, "+"),
                                 c.h_q, c.h_kv, c.d_qk, c.d_v);
  if (c.causal) text += " causal";
  if (!(c.window == Window{})) text += fmt::format(" window:{},{}", c.window.left, c.window.right);
  text += kSinks[static_cast<int>(c.sink)];
  if (c.sink != Sink::kNone) text += fmt::format(":{}", to_string(c.sink_dtype));
  if (c.selected != Selected::kNothing) text += fmt::format(" {}x{} of {}", c.q_block, c.kv_block, c.width);
  if (c.lead > 0) text += fmt::format(" lead:{}", c.lead);
  if (c.packed) text += " packed";
  if (c.spread != 1.0f) text += fmt::format(" spread:{}", c.spread);
  return text;
}

TensorView SequenceData::allocate(DType type, std::vector<int64_t> shape, int64_t row_gap) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * shape[i];
  if (shape.size() > 1) strides[0] += row_gap;
  const int64_t elements = shape.empty() ? 0 : shape[0] * strides[0];
  memory_.emplace_back(static_cast<size_t>(elements * size_of(type)) + 64, uint8_t{0xFF});
  uint8_t* data = memory_.back().data();
  data += (64 - reinterpret_cast<uintptr_t>(data) % 64) % 64;
  return {data, type, shape, strides};
}

void SequenceData::allocate_keys(TensorView* keys, TensorView* values) {
  const int64_t rows = sum(case_.lengths_k) + 2 * case_.lead;
  if (!case_.packed) {
    *keys = allocate(case_.dtype, {rows, case_.h_kv, case_.d_qk});
    *values = allocate(case_.dtype, {rows, case_.h_kv, case_.d_v});
    return;
  }
  const TensorView both = allocate(case_.dtype, {rows, case_.h_kv, case_.d_qk + case_.d_v});
  *keys = {both.data(), case_.dtype, std::vector<int64_t>{rows, case_.h_kv, case_.d_qk}, both.strides()};
  *values = {both.data_as<uint16_t>() + case_.d_qk, case_.dtype,
             std::vector<int64_t>{rows, case_.h_kv, case_.d_v}, both.strides()};
}

void SequenceData::fill_normal(const TensorView& view, const char* label, float spread) {
  const Stream64 stream = Stream64{mix_bits(hash_text(name(case_)))}.child(label);
  for (int64_t i = 0; i < view.size(0); ++i) {
    for (int64_t j = 0; j < view.size(1); ++j) {
      for (int64_t c = 0; c < view.size(2); ++c) {
        const auto at = static_cast<uint64_t>((i * view.size(1) + j) * view.size(2) + c);
        set_float_value(view.data(), view.dtype(), i * view.stride(0) + j * view.stride(1) + c,
                        spread * stream.normal(at));
      }
    }
  }
}

void SequenceData::fill_selection() {
  int64_t rows = 0;
  for (const int64_t length : case_.lengths_q) rows += (length + case_.q_block - 1) / case_.q_block;
  const bool per_head = case_.selected == Selected::kPerHead;
  const int64_t lists = per_head ? case_.h_q : 1;
  // One row more than there are query blocks.
  q2k = per_head ? allocate(DType::kInt32, {lists, rows + 1, case_.width})
                 : allocate(DType::kInt32, {rows + 1, case_.width});
  const int64_t blocks = largest(case_.lengths_k) / case_.kv_block + 1;
  const Stream64 stream = Stream64{mix_bits(hash_text(name(case_)))}.child("selection");
  for (int64_t i = 0; i < lists * (rows + 1) * case_.width; ++i) {
    // Pads, blocks that exist and, sometimes, ones that do not.
    q2k.data_as<int32_t>()[i] = static_cast<int32_t>(stream.below(static_cast<uint64_t>(i), blocks + 2) - 1);
  }
}

SequenceData::SequenceData(const SequenceCase& c) : case_(c) {
  const int64_t rows = sum(c.lengths_q) + 2 * c.lead;
  const int64_t gap = c.packed ? 8 : 0;
  q = allocate(c.dtype, {rows, c.h_q, c.d_qk}, gap);
  allocate_keys(&k, &v);
  d_out = allocate(c.dtype, {rows, c.h_q, c.d_v}, gap);
  fill_normal(q, "q", c.spread);
  fill_normal(k, "k", c.spread);
  fill_normal(v, "v", 1.0f);
  fill_normal(d_out, "d_out", 1.0f);
  const auto batch = static_cast<int64_t>(c.lengths_q.size());
  cu_q = allocate(DType::kInt32, {batch + 1});
  cu_k = allocate(DType::kInt32, {batch + 1});
  cu_q.data_as<int32_t>()[0] = cu_k.data_as<int32_t>()[0] = static_cast<int32_t>(c.lead);
  for (size_t i = 0; i < c.lengths_q.size(); ++i) {
    cu_q.data_as<int32_t>()[i + 1] = cu_q.data_as<int32_t>()[i] + static_cast<int32_t>(c.lengths_q[i]);
    cu_k.data_as<int32_t>()[i + 1] = cu_k.data_as<int32_t>()[i] + static_cast<int32_t>(c.lengths_k[i]);
  }
  if (c.selected == Selected::kShared || c.selected == Selected::kPerHead) fill_selection();
  if (c.sink != Sink::kNone) {
    sink_ = allocate(c.sink_dtype, {c.h_q});
    for (int64_t h = 0; h < c.h_q; ++h) {
      float value = 0.5f * static_cast<float>(h % 5) - 1.0f;
      if (c.sink == Sink::kExtreme && h % 3 != 0) value = h % 3 == 1 ? INFINITY : -INFINITY;
      set_float_value(sink_.data(), c.sink_dtype, h, value);
    }
  }
  out_ = allocate(c.dtype, {rows, c.h_q, c.d_v}, gap);
  lse_ = allocate(DType::kFP32, {rows, c.h_q}, gap);
  forward_out_ = allocate(c.dtype, {rows, c.h_q, c.d_v}, gap);
  forward_lse_ = allocate(DType::kFP32, {rows, c.h_q}, gap);
  dq_ = allocate(c.dtype, {rows, c.h_q, c.d_qk}, gap);
  allocate_keys(&dk_, &dv_);
  if (sink_) d_sink_ = allocate(c.sink_dtype, {c.h_q});
}

template <class Args>
Args SequenceData::common() {
  Args a;
  a.q = q;
  a.k = k;
  a.v = v;
  a.cu_seqlens_q = cu_q;
  a.cu_seqlens_k = cu_k;
  a.max_seqlen_q = largest(case_.lengths_q);
  a.max_seqlen_k = largest(case_.lengths_k);
  a.softmax_scale = 1.0f / std::sqrt(static_cast<float>(case_.d_qk));
  a.causal = case_.causal;
  a.window = case_.window;
  a.sink_bias = sink_;
  if constexpr (std::is_base_of_v<BlockSparseCommon, Args>) {
    a.q2k = q2k;
    a.q_block = case_.q_block;
    a.kv_block = case_.kv_block;
  }
  return a;
}

SequenceArgs SequenceData::forward() {
  const auto with_outputs = [&](auto a) {
    a.out = forward_out_;
    a.lse = forward_lse_;
    return SequenceArgs(a);
  };
  return block_sparse() ? with_outputs(common<BlockSparsePrefillFwdArgs>())
                        : with_outputs(common<DensePrefillFwdArgs>());
}

SequenceArgs SequenceData::backward() {
  const auto result =
      block_sparse() ? reference::training_forward(common<BlockSparsePrefillFwdArgs>(), Arithmetic::kDouble)
                     : reference::training_forward(common<DensePrefillFwdArgs>(), Arithmetic::kDouble);
  size_t row = 0;
  for (int64_t i = 0; i < out_.size(0); ++i) {
    for (int64_t h = 0; h < case_.h_q; ++h, ++row) {
      lse_.data_as<float>()[i * lse_.stride(0) + h] = static_cast<float>(result.lse[row]);
      for (int64_t c = 0; c < case_.d_v; ++c) {
        const double value = result.out[row * static_cast<size_t>(case_.d_v) + static_cast<size_t>(c)];
        set_float_value(out_.data(), case_.dtype, i * out_.stride(0) + h * out_.stride(1) + c,
                        static_cast<float>(value));
      }
    }
  }
  const auto with_gradients = [&](auto a) {
    a.d_out = d_out;
    a.out = out_;
    a.lse = lse_;
    a.dq = dq_;
    a.dk = dk_;
    a.dv = dv_;
    a.d_sink = d_sink_;
    return SequenceArgs(a);
  };
  return block_sparse() ? with_gradients(common<BlockSparsePrefillBwdArgs>())
                        : with_gradients(common<DensePrefillBwdArgs>());
}

std::vector<uint8_t> SequenceData::outputs_of(const SequenceArgs& args) {
  std::vector<uint8_t> bytes;
  each_output(args, [&](const TensorView& view) {
    casefile::for_each_run(view,
                           [&](const uint8_t* run, int64_t n) { bytes.insert(bytes.end(), run, run + n); });
  });
  return bytes;
}

void SequenceData::fill_outputs(const SequenceArgs& args, uint8_t byte) {
  each_output(args, [&](const TensorView& view) {
    casefile::for_each_run(view, [&](const uint8_t* run, int64_t n) {
      std::memset(const_cast<uint8_t*>(run), byte, static_cast<size_t>(n));
    });
  });
}

std::vector<SequenceCase> sequence_cases() {
  const bool smoke = test_set() == TestSet::kSmoke;
  const bool full = test_set() == TestSet::kFull;
  const Stream64 stream = Stream64{20}.child("sequences");
  uint64_t draw = 0;
  const auto pick = [&]<class T>(std::initializer_list<T> values) {
    return *(values.begin() + stream.below(draw++, static_cast<int64_t>(values.size())));
  };
  std::vector<SequenceCase> cases;
  for (int i = 0; i < (smoke ? 12 : full ? 400 : 80); ++i) {
    SequenceCase c;
    c.lengths_q.clear();
    c.lengths_k.clear();
    for (int64_t s = pick({1, 1, 2, 3}); s > 0; --s) {
      c.lengths_q.push_back(pick({0, 1, 15, 64, 127, 128, 130, 200, 257, 300}));
      c.lengths_k.push_back(pick({0, 1, 17, 64, 128, 130, 255, 256, 300, 520}));
    }
    if (smoke) c.lengths_q = {pick({1, 70, 130})}, c.lengths_k = {pick({1, 100, 300})};
    c.selected = pick({Selected::kNothing, Selected::kNothing, Selected::kAll, Selected::kShared,
                       Selected::kPerHead, Selected::kPerHead});
    c.h_kv = pick({1, 1, 2, 3});
    c.h_q = c.h_kv * pick({1, 1, 2, 5});
    const int size = pick({0, 1, 2});
    c.d_qk = size == 0 ? 192 : size == 1 || c.selected != Selected::kNothing ? 128 : 64;
    c.d_v = c.d_qk == 192 ? 128 : c.d_qk;
    c.dtype = pick({DType::kBF16, DType::kBF16, DType::kFP16});
    c.causal = pick({false, true, true});
    c.window.left = pick({-1, -1, 0, 40, 150, 1000});
    c.window.right = c.causal ? pick({-1, 0}) : pick({-1, 0, 30, 140});
    c.sink = pick({Sink::kNone, Sink::kFinite, Sink::kExtreme});
    c.sink_dtype = pick({DType::kFP32, DType::kBF16, DType::kFP16});
    c.width = pick({0, 1, 2, 4, 7});
    c.q_block = pick({64, 128, 192, 256});
    c.kv_block = pick({64, 128});
    c.lead = pick({0, 0, 3, 70});
    c.packed = pick({false, true});
    c.spread = pick({1.0f, 1.0f, 3.0f});
    cases.push_back(c);
  }
  return cases;
}

}  // namespace tilewise::cases
