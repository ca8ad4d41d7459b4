// Every error of quantize_kv, dequantize_kv and append_kv.
#include "tests/errors/refusal.h"

namespace tilewise::errors {
namespace {

constexpr int64_t kTooMany = int64_t{1} << 31;
const std::string kNamed =
    "record must be named (v32_fp8, v32_nope_fp8, v4_fp8, v41_fp8, v41_fp4, v41_fp8_row, v41_fp4_row, "
    "v41_main_fp4, "
    "v32_nvfp4 or bf16), got ";

std::string bytes_text(Record record, int64_t d) { return std::to_string(record_bytes(record, d)); }

template <class A>
std::vector<Row<A>> record_rows() {
  return {
      {"no name", [](auto& c) { c.args.record = Record::kAuto; }, kNamed + "auto"},
      {"no record", [](auto& c) { c.args.record = static_cast<Record>(10); }, kNamed + "record id 10"},
      {"rows of another head size", [](auto& c) { c.args.record = Record::kV4Fp8; },
       "x must be bfloat16 [n, 512] for record v4_fp8, got bfloat16 [" +
           std::string(std::is_same_v<A, QuantizeKvArgs> ? "10" : "12") + ", 576]"},
      {"bytes as bf16", [](auto& c) { c.args.record = Record::kBf16; },
       "pages must be bfloat16 [num_blocks, page, 1, 576] for record bf16, got uint8 [3, 4, 1, " +
           bytes_text(Record::kV32Fp8, 576) + "]"},
      {"no head size of bf16",
       [](auto& c) {
         c.args.record = Record::kBf16;
         c.args.x = with_size(c.args.x, 1, 64);
       },
       "x must be bfloat16 [n, 576 or 512] for record bf16, got bfloat16 [" +
           std::string(std::is_same_v<A, QuantizeKvArgs> ? "10" : "12") + ", 64]"},
      {"another record's width", [](auto& c) { c.args.record = Record::kV32Nvfp4; },
       "pages must be " + bytes_expected(Record::kV32Nvfp4, 576) + ", got uint8 [3, 4, 1, " +
           bytes_text(Record::kV32Fp8, 576) + "]"},
      {"empty pages", [](auto& c) { c.args.pages = with_size(c.args.pages, 1, 0); },
       "pages must be of page 1 to 2147483647, got page 0"},
      {"huge pages", [](auto& c) { c.args.pages = with_size(with_size(c.args.pages, 0, 0), 1, kTooMany); },
       "pages must be of page 1 to 2147483647, got page 2147483648"},
  };
}

TEST(QuantizeKvErrors, All) {
  using A = QuantizeKvArgs;
  expect_argument_rows<A>(quantize_kv_call);
  expect_rows<A>(quantize_kv_call, record_rows<A>());
  const std::string shape = ", 1, " + bytes_text(Record::kV32Fp8, 576) + "]";
  expect_rows<A>(quantize_kv_call,
                 {
                     {"a page too few", [](auto& c) { c.args.pages = with_size(c.args.pages, 0, 2); },
                      "pages must be of 3 blocks for 10 rows in pages of 4, got uint8 [2, 4" + shape},
                     {"a page too many", [](auto& c) { c.args.x = with_size(c.args.x, 0, 8); },
                      "pages must be of 2 blocks for 8 rows in pages of 4, got uint8 [3, 4" + shape},
                     {"pages for no row", [](auto& c) { c.args.x = with_size(c.args.x, 0, 0); },
                      "pages must be of 0 blocks for 0 rows in pages of 4, got uint8 [3, 4" + shape},
                 });
}

TEST(DequantizeKvErrors, All) {
  using A = DequantizeKvArgs;
  expect_argument_rows<A>(dequantize_kv_call);
  expect_rows<A>(dequantize_kv_call, record_rows<A>());
  expect_rows<A>(dequantize_kv_call,
                 {
                     {"a row too few", [](auto& c) { c.args.x = with_size(c.args.x, 0, 11); },
                      "x must be of 12 rows for 3 pages of 4, got bfloat16 [11, 576]"},
                     {"a row too many", [](auto& c) { c.args.x = with_size(c.args.x, 0, 13); },
                      "x must be of 12 rows for 3 pages of 4, got bfloat16 [13, 576]"},
                 });
}

TEST(AppendKvErrors, All) {
  using A = AppendKvArgs;
  expect_argument_rows<A>(append_kv_call);
  const std::string shape = "[3, 4, 1, " + bytes_text(Record::kV32Nvfp4, 576) + "]";
  expect_rows<A>(
      append_kv_call,
      {
          {"a record of another head size", [](auto& c) { c.args.record = Record::kV41Fp8; },
           "record must be auto or a record of head size 576 (v32_fp8, v32_nvfp4 or bf16), got v41_fp8 of "
           "head size "
           "512"},
          {"no record", [](auto& c) { c.args.record = static_cast<Record>(10); },
           "record must be auto or a record of head size 576 (v32_fp8, v32_nvfp4 or bf16), got record id 10"},
          {"another record's width", [](auto& c) { c.args.record = Record::kV32Fp8; },
           "cache must be " + bytes_expected(Record::kV32Fp8, 576) + ", got uint8 " + shape},
          {"a width of no record",
           [](auto& c) {
             c.args.record = Record::kAuto;
             c.args.cache = with_size(c.args.cache, 3, 336);
           },
           "cache must be uint8, int8 or float8_e4m3fn [num_blocks, page, 1, bytes] of a record for head "
           "size 576 "
           "(v32_fp8 " +
               bytes_text(Record::kV32Fp8, 576) + ", v32_nvfp4 " + bytes_text(Record::kV32Nvfp4, 576) +
               ") or bfloat16 [num_blocks, page, 1, 576], got uint8 [3, 4, 1, 336]"},
          {"no cache, no record",
           [](auto& c) {
             c.args.record = Record::kAuto;
             c.args.cache = {};
           },
           "cache must be given, got nothing"},
          {"empty pages", [](auto& c) { c.args.cache = with_size(c.args.cache, 1, 0); },
           "cache must be of page 1 to 2147483647, got page 0"},
      });
}

TEST(AppendKvErrors, Accepted) {
  for (DType type : {DType::kUInt8, DType::kInt8, DType::kE4M3}) {
    Call<AppendKvArgs> call = append_kv_call();
    call.args.cache = with_dtype(call.args.cache, type);
    expect_accepted(call, to_string(type));
    call.args.record = Record::kAuto;
    call.args.slots = call.memory.input(DType::kInt32, {5});
    expect_accepted(call, "record found by its width");
  }
  for (int64_t d : {512, 576}) {
    Call<AppendKvArgs> call = append_kv_call();
    call.args.record = Record::kAuto;
    call.args.kv = call.memory.input(DType::kBF16, {5, d});
    call.args.cache = call.memory.output(DType::kBF16, {3, 4, 1, d});
    expect_accepted(call, "bf16 rows");
  }
}

}  // namespace
}  // namespace tilewise::errors
