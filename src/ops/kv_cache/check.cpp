// Checks of quantize_kv, dequantize_kv and append_kv.
#include <fmt/format.h>

#include "ops/checks.h"
#include "ops/forward_check.h"

namespace tilewise {
namespace {

const Dim& any_head_size() {
  static const Dim dim = Dim::either(576, 512);
  return dim;
}

/// The record that quantize_kv and dequantize_kv want named, and the head sizes that it holds.
Dim check_named(const Checker& check, Record record) {
  std::vector<std::string_view> names;
  for (Record known : all_records()) {
    if (known == record) return record_dim(record) > 0 ? Dim(record_dim(record)) : any_head_size();
    names.emplace_back(record_name(known));
  }
  check.refuse("record", fmt::format("named ({})", either_of(names)),
               record == Record::kAuto ? "auto" : fmt::format("record id {}", static_cast<int32_t>(record)));
}

std::string for_record(Record record) { return fmt::format("for record {}", record_name(record)); }

void take_pages(const TensorView& pages, KvMoveProblem* problem) {
  problem->shape.num_blocks = pages.size(0);
  problem->shape.page = pages.size(1);
  problem->pages = pages.data_as<uint8_t>();
  problem->block_stride = step_bytes(pages, 0);
}

void take_rows(const TensorView& x, KvMoveProblem* problem) {
  problem->shape.n = x.size(0);
  problem->shape.d = x.size(1);
  problem->x = x.data_as<uint16_t>();
  problem->x_stride = step(x, 0);
}

}  // namespace

KvMoveProblem check(const QuantizeKvArgs& args, DeviceId device) {
  Checker check("quantize_kv", device);
  KvMoveProblem problem;
  problem.shape.op = check.op();
  problem.shape.move = KvMove::kQuantize;
  problem.shape.record = args.record;
  const Dim d = check_named(check, args.record);
  check.input("x", args.x, {DType::kBF16}, {"n", d}, Layout::kRows, for_record(args.record));
  take_rows(args.x, &problem);
  check.given("pages", args.pages);
  check_pages(check, {"pages", args.pages, "record", args.record, true}, args.record, problem.shape.d);
  take_pages(args.pages, &problem);
  const int64_t n = problem.shape.n;
  const int64_t page = problem.shape.page;
  const int64_t blocks = n / page + (n % page != 0 ? 1 : 0);
  if (problem.shape.num_blocks != blocks) {
    check.refuse("pages", fmt::format("of {} blocks for {} rows in pages of {}", blocks, n, page),
                 to_string(args.pages));
  }
  check.no_overlaps();
  return problem;
}

KvMoveProblem check(const DequantizeKvArgs& args, DeviceId device) {
  Checker check("dequantize_kv", device);
  KvMoveProblem problem;
  problem.shape.op = check.op();
  problem.shape.move = KvMove::kDequantize;
  problem.shape.record = args.record;
  const Dim d = check_named(check, args.record);
  check.given("pages", args.pages);
  // A record of bf16 rows is as wide as x; x is asked first, as its head sizes are known. Where x was
  // allocated by the pages' sizes, these must be there.
  const int64_t likely_d = record_dim(args.record) > 0 ? record_dim(args.record) : 576;
  if (args.pages.rank() != 4) {
    check_pages(check, {"pages", args.pages, "record", args.record}, args.record, likely_d);
  }
  check.output("x", args.x, {DType::kBF16}, {"n", d}, Layout::kRows, for_record(args.record));
  take_rows(args.x, &problem);
  check_pages(check, {"pages", args.pages, "record", args.record}, args.record, problem.shape.d);
  take_pages(args.pages, &problem);
  const int64_t rows = problem.shape.num_blocks * problem.shape.page;
  if (problem.shape.n != rows) {
    check.refuse(
        "x", fmt::format("of {} rows for {} pages of {}", rows, problem.shape.num_blocks, problem.shape.page),
        to_string(args.x));
  }
  check.no_overlaps();
  return problem;
}

KvMoveProblem check(const AppendKvArgs& args, DeviceId device) {
  Checker check("append_kv", device);
  KvMoveProblem problem;
  problem.shape.op = check.op();
  problem.shape.move = KvMove::kAppend;
  check.input("kv", args.kv, {DType::kBF16}, {"n", any_head_size()});
  take_rows(args.kv, &problem);
  const PagedArgument cache{"cache", args.cache, "record", args.record, true};
  problem.shape.record = find_record(check, cache, problem.shape.d);
  check_pages(check, cache, problem.shape.record, problem.shape.d);
  take_pages(args.cache, &problem);
  check.input("slots", args.slots, {DType::kInt32, DType::kInt64}, {problem.shape.n});
  check.no_overlaps();
  problem.shape.slot_dtype = args.slots.dtype();
  problem.slots = args.slots.data();
  problem.slot_stride = step(args.slots, 0);
  return problem;
}

}  // namespace tilewise
