// One layer: caches written by append_kv, then fused_prefill and fused_decode into disjoint tokens of one
// output pair.
#include "tools/layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "cases/fill.h"
#include "cases/random.h"
#include "reference/dequant.h"
#include "tools/measure.h"

namespace tilewise::tools {
namespace {

using cases::Args;
using cases::Case;
using cases::CaseData;
using cases::Op;

constexpr int64_t kPromptTokens = 37;
constexpr int64_t kDecodedTokens = 13;
constexpr int64_t kTokens = kPromptTokens + kDecodedTokens;
constexpr int64_t kSfTokens = (kTokens + 3) / 4 * 4;  // of a column of out_sf, padding included
constexpr int64_t kHeads = 64;
constexpr int64_t kGroups = 8;
constexpr int64_t kGroupWidth = kHeads / kGroups * 512;
constexpr int64_t kSfColumns = kGroupWidth / 128;
constexpr int32_t kCanary = 0x5A5A5A5A;

Case fused_case(Op op, int64_t tokens) {
  Case c;
  c.op = op;
  c.s_q = tokens;
  c.h_q = kHeads;
  c.n_groups = kGroups;
  c.q_norm_eps = 1e-6f;
  c.sink = cases::Sink::kFinite;
  return c;
}

Case prompt_case() {
  Case c = fused_case(Op::kFusedPrefill, kPromptTokens);
  c.main = {.width = 640, .rows = 4096};
  return c;
}

// A window of 128 tokens beside 512 chosen compressed ones.
Case decode_case() {
  Case c = fused_case(Op::kFusedDecode, kDecodedTokens);
  c.main = {.record = Record::kV41Fp8, .page = 64, .width = 128, .rows = 1024};
  c.extra = cases::CacheCase{.record = Record::kV41Fp4, .page = 64, .width = 512, .rows = 4096};
  return c;
}

// The attention output of all tokens of a step, and views of a range of them.
class LayerOutput {
 public:
  LayerOutput()
      : codes_(kTokens * kGroups * kGroupWidth, 0), scales_(kGroups * kSfColumns * kSfTokens * 4, 0) {
    std::fill_n(sf(), scales_.bytes() / 4, kCanary);
  }

  void give(FusedOutputs& to, int64_t first, int64_t tokens) const {
    const std::vector<int64_t> shape = {tokens, kGroups, kSfColumns};
    const std::vector<int64_t> strides = {1, kSfColumns * kSfTokens, kSfTokens};
    to.out_fp8 = {
        codes_.data() + first * kGroups * kGroupWidth, DType::kE4M3, {tokens, kGroups, kGroupWidth}};
    to.out_sf = {sf() + first, DType::kInt32, shape, strides};
  }

  bool padding_holds() const {
    for (int64_t column = 0; column < kGroups * kSfColumns; ++column) {
      for (int64_t token = kTokens; token < kSfTokens; ++token) {
        if (sf()[column * kSfTokens + token] != kCanary) return false;
      }
    }
    return true;
  }

 private:
  int32_t* sf() const { return reinterpret_cast<int32_t*>(scales_.data()); }

  cases::Buffer codes_;
  cases::Buffer scales_;
};

// Writes every slot of the cache, in random order, and compares the cache's bytes with the oracle's.
Row fill_by_append(CaseData& data, const char* name, Record record, const Device& device,
                   const PlanOptions& options) {
  cases::Operand& cache = data.operand(name);
  const int64_t slots = cache.view.size(0) * cache.view.size(1);
  const cases::Stream64 random = cases::Stream64{7}.child(name);
  const cases::Shuffle order(random, slots);
  std::vector<uint16_t> rows(static_cast<size_t>(slots * 512));
  std::vector<int64_t> targets(static_cast<size_t>(slots));
  for (int64_t i = 0; i < slots; ++i) {
    cases::make_kv_row(data.what(), random, i, rows.data() + i * 512);
    targets[static_cast<size_t>(i)] = order.at(i);
  }
  std::memset(cache.memory.data(), 0xA5, static_cast<size_t>(cache.memory.bytes()));
  const std::vector<uint8_t> old(cache.memory.data(), cache.memory.data() + cache.memory.bytes());

  AppendKvArgs args;
  args.kv = {rows.data(), DType::kBF16, {slots, 512}};
  args.cache = cache.view;
  args.slots = {targets.data(), DType::kInt64, {slots}};
  args.record = record;
  const Plan made = cases::plan_case(args, device, options);

  Row row;
  row.op = made.op();
  row.records = record_name(record);
  row.shape = fmt::format("n{} d512", slots);
  row.kernel = made.kernel();
  row.milliseconds = run_and_time(made, args);
  const int64_t bytes = slots * (512 * 2 + 8 + record_bytes(record, 512));
  row.rate = static_cast<double>(bytes) * 1e-6 / std::max(row.milliseconds, 1e-6);
  row.unit = "GB/s";
  const std::vector<uint8_t> expected = reference::after_append(args, old);
  for (size_t i = 0; i < expected.size(); ++i) {
    if (cache.memory.data()[i] != expected[i])
      row.comparison.note_wrong([&] { return fmt::format("byte {}", i); });
  }
  return row;
}

// A call on the range of the layer's output that its arguments view, still to be judged.
Row run_part(const CaseData& data, const Args& args, const Device& device, const PlanOptions& options) {
  const Plan made = cases::plan_case(args, device, options);
  return describe_call(data, made, run_and_time(made, args));
}

}  // namespace

std::vector<Row> run_layer(const Device& device, const PlanOptions& options,
                           const std::function<void(const std::string&)>& step) {
  const CaseData prompt = cases::make(prompt_case());
  CaseData decode = cases::make(decode_case());
  const LayerOutput output;
  std::vector<Row> rows;

  step("append_kv into the window's cache (v41_fp8)");
  rows.push_back(fill_by_append(decode, "kv_cache", Record::kV41Fp8, device, options));
  step("append_kv into the compressed cache (v41_fp4)");
  rows.push_back(fill_by_append(decode, "extra_cache", Record::kV41Fp4, device, options));

  auto prompt_args = std::get<FusedPrefillArgs>(prompt.args());
  output.give(prompt_args, 0, kPromptTokens);
  auto decode_args = std::get<FusedDecodeArgs>(decode.args());
  output.give(decode_args, kPromptTokens, kDecodedTokens);
  step(cases::name(prompt.what()));
  Row first = run_part(prompt, prompt_args, device, options);
  step(cases::name(decode.what()));
  Row second = run_part(decode, decode_args, device, options);

  // Judged when both are done: neither may have touched the other's tokens, nor the padding.
  first.comparison = cases::worst(cases::judge(prompt_args, cases::truth_of(prompt_args)));
  second.comparison = cases::worst(cases::judge(decode_args, cases::truth_of(decode_args)));
  if (!output.padding_holds()) second.comparison.note_wrong([] { return "padding of out_sf was written"; });
  rows.push_back(std::move(first));
  rows.push_back(std::move(second));
  return rows;
}

}  // namespace tilewise::tools
