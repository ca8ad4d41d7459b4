// Every error of sparse_decode.
#include <limits>

#include "tests/errors/refusal.h"

namespace tilewise::errors {
namespace {

using Args = SparseDecodeArgs;
constexpr int64_t kTooMany = int64_t{1} << 31;

std::string bytes_text(Record record, int64_t d) { return std::to_string(record_bytes(record, d)); }

// A record with its size, as the texts list it.
std::string sized(Record record, int64_t d) {
  return std::string(record_name(record)) + " " + bytes_text(record, d);
}

Call<Args> main_alone(Record record, int64_t d) {
  Call<Args> call = sparse_decode_call(record, record, d);
  call.args.extra_cache = {};
  call.args.extra_indices = {};
  call.args.extra_topk_length = {};
  call.args.extra_record = Record::kAuto;
  return call;
}

Call<Args> default_call() { return sparse_decode_call(); }
Call<Args> bf16_call() {
  Call<Args> call = sparse_decode_call(Record::kBf16, Record::kBf16, 576);
  call.arguments[1].expected = "bfloat16 [num_blocks, page, 1, 576] for record bf16";
  call.arguments[4].expected = "bfloat16 [num_blocks, page, 1, 576] for record bf16";
  return call;
}
Call<Args> v32_call() { return sparse_decode_call(Record::kV32Fp8, Record::kV32Fp8, 576); }
Call<Args> without_extra() { return main_alone(Record::kV32Fp8, 576); }

TEST(SparseDecodeErrors, Arguments) {
  expect_argument_rows<Args>(default_call);
  expect_argument_rows<Args>(bf16_call);
  expect_argument_rows<Args>(v32_call);
}

TEST(SparseDecodeErrors, Sizes) {
  expect_rows<Args>(
      default_call,
      {
          {"no heads", [](auto& c) { c.args.q = with_size(c.args.q, 2, 0); },
           "q must be of h_q 1 to 128 or a multiple of 64 above, got h_q 0"},
          {"191 heads", [](auto& c) { c.args.q = with_stride(with_size(c.args.q, 2, 191), 2, 0); },
           "q must be of h_q 1 to 128 or a multiple of 64 above, got h_q 191"},
          {"too many requests", [](auto& c) { c.args.q = with_size(with_size(c.args.q, 1, 0), 0, kTooMany); },
           "q must be of b 0 to 2147483647, got b 2147483648"},
          {"too many tokens", [](auto& c) { c.args.q = with_size(with_size(c.args.q, 0, 0), 1, kTooMany); },
           "q must be of s_q 0 to 2147483647, got s_q 2147483648"},
          {"a huge list",
           [](auto& c) {
             c.args.indices = with_stride(with_stride(with_size(c.args.indices, 2, kTooMany), 0, 0), 1, 0);
           },
           "indices must be of topk 0 to 2147483647, got topk 2147483648"},
          {"a huge extra list",
           [](auto& c) {
             c.args.extra_indices =
                 with_stride(with_stride(with_size(c.args.extra_indices, 2, kTooMany), 0, 0), 1, 0);
           },
           "extra_indices must be of extra_topk 0 to 2147483647, got extra_topk 2147483648"},
          {"two lists that are huge together",
           [](auto& c) {
             c.args.extra_indices =
                 with_stride(with_stride(with_size(c.args.extra_indices, 2, INT32_MAX), 0, 0), 1, 0);
           },
           "extra_indices must be at most 2147483647 entries together with indices, got 2147483647 and 5"},
          {"empty pages", [](auto& c) { c.args.kv_cache = with_size(c.args.kv_cache, 1, 0); },
           "kv_cache must be of page 1 to 2147483647, got page 0"},
          {"huge extra pages",
           [](auto& c) { c.args.extra_cache = with_size(with_size(c.args.extra_cache, 0, 0), 1, kTooMany); },
           "extra_cache must be of page 1 to 2147483647, got page 2147483648"},
          {"infinite scale", [](auto& c) { c.args.softmax_scale = -std::numeric_limits<float>::infinity(); },
           "softmax_scale must be finite, got -inf"},
          {"the contract's example",
           [](auto& c) { c.args.indices = with_dtype(c.args.indices, DType::kInt64); },
           "indices must be int32 [2, 3, topk], got int64 [2, 3, 5]"},
      });
}

TEST(SparseDecodeErrors, ExtraCacheComesWhole) {
  expect_rows<Args>(without_extra,
                    {
                        {"indices alone", [](auto& c) { c.args.extra_indices = c.args.indices; },
                         "extra_cache must be given with extra_indices, got nothing"},
                        {"lengths alone", [](auto& c) { c.args.extra_topk_length = c.args.topk_length; },
                         "extra_topk_length must be left out without extra_cache, got int32 [2]"},
                        {"a record alone", [](auto& c) { c.args.extra_record = Record::kV32Fp8; },
                         "extra_record must be auto without extra_cache, got v32_fp8"},
                    });
}

TEST(SparseDecodeErrors, RecordsThatAreNotFound) {
  const std::string known_512 = sized(Record::kV4Fp8, 512) + ", " + sized(Record::kV41Fp8, 512) + ", " +
                                sized(Record::kV41Fp4, 512) + ", " + sized(Record::kV41MainFp4, 512);
  const std::string known_576 = sized(Record::kV32Fp8, 576) + ", " + sized(Record::kV32Nvfp4, 576);
  const auto text = [](const std::string& name, int d, const std::string& known, const std::string& got) {
    return name +
           " must be uint8, int8 or float8_e4m3fn [num_blocks, page, 1, bytes] of a record for head size " +
           std::to_string(d) + " (" + known + ") or bfloat16 [num_blocks, page, 1, " + std::to_string(d) +
           "], got " + got;
  };
  expect_rows<Args>(
      default_call,
      {
          {"unknown width",
           [](auto& c) {
             c.args.record = Record::kAuto;
             c.args.kv_cache = with_size(c.args.kv_cache, 3, 500);
           },
           text("kv_cache", 512, known_512, "uint8 [3, 4, 1, 500]")},
          {"float32",
           [](auto& c) {
             c.args.record = Record::kAuto;
             c.args.kv_cache = with_dtype(c.args.kv_cache, DType::kFP32);
           },
           text("kv_cache", 512, known_512, "float32 [3, 4, 1, " + bytes_text(Record::kV41Fp8, 512) + "]")},
          {"unknown extra width",
           [](auto& c) {
             c.args.extra_record = Record::kAuto;
             c.args.extra_cache = with_size(c.args.extra_cache, 3, 16);
           },
           text("extra_cache", 512, known_512, "uint8 [3, 4, 1, 16]")},
          {"three dimensions",
           [](auto& c) {
             c.args.record = Record::kAuto;
             c.args.kv_cache = c.memory.input(DType::kUInt8, {3, 4, 16});
           },
           text("kv_cache", 512, known_512, "uint8 [3, 4, 16]")},
      });
  Call<Args> call = v32_call();
  call.args.record = Record::kAuto;
  call.args.kv_cache = with_size(call.args.kv_cache, 3, 512);
  expect_refused(v32_call(), call, text("kv_cache", 576, known_576, "uint8 [3, 4, 1, 512]"));
}

TEST(SparseDecodeErrors, NamedRecords) {
  const std::string of_512 =
      "auto or a record of head size 512 (v32_nope_fp8, v4_fp8, v41_fp8, v41_fp4, v41_fp8_row, v41_fp4_row, "
      "v41_main_fp4 or bf16), got ";
  const std::string of_576 = "auto or a record of head size 576 (v32_fp8, v32_nvfp4 or bf16), got ";
  expect_rows<Args>(default_call,
                    {
                        {"another head size", [](auto& c) { c.args.record = Record::kV32Nvfp4; },
                         "record must be " + of_512 + "v32_nvfp4 of head size 576"},
                        {"no record", [](auto& c) { c.args.record = static_cast<Record>(77); },
                         "record must be " + of_512 + "record id 77"},
                        {"a negative id", [](auto& c) { c.args.extra_record = static_cast<Record>(-2); },
                         "extra_record must be " + of_512 + "record id -2"},
                    });
  expect_rows<Args>(
      v32_call,
      {
          {"another head size", [](auto& c) { c.args.record = Record::kV41Fp8; },
           "record must be " + of_576 + "v41_fp8 of head size 512"},
          {"an extra one's", [](auto& c) { c.args.extra_record = Record::kV4Fp8; },
           "extra_record must be " + of_576 + "v4_fp8 of head size 512"},
          {"bytes as bf16", [](auto& c) { c.args.record = Record::kBf16; },
           "kv_cache must be bfloat16 [num_blocks, page, 1, 576] for record bf16, got uint8 [3, 4, 1, " +
               bytes_text(Record::kV32Fp8, 576) + "]"},
      });
  expect_rows<Args>(bf16_call, {{"bf16 as bytes", [](auto& c) { c.args.record = Record::kV32Fp8; },
                                 "kv_cache must be " + bytes_expected(Record::kV32Fp8, 576) +
                                     ", got bfloat16 [3, 4, 1, 576]"}});
}

TEST(SparseDecodeErrors, MainCacheRecords) {
  const std::string main_512 =
      "a record for a main cache (v32_nope_fp8, v4_fp8, v41_fp8, v41_fp8_row or bf16), got ";
  for (Record record : {Record::kV41Fp4, Record::kV41Fp4Row, Record::kV41MainFp4}) {
    SCOPED_TRACE(record_name(record));
    Call<Args> call = main_alone(record, 512);
    expect_refused(without_extra(), call, "record must be " + main_512 + record_name(record));
    if (record == Record::kV41Fp4Row) continue;  // found as v41_fp4
    call.args.record = Record::kAuto;
    expect_refused(without_extra(), call, "kv_cache must be of " + main_512 + record_name(record));
  }
}

// The contract's list: the same record twice, and three mixed pairs.
std::string partners(Record main) {
  switch (main) {
    case Record::kV41Fp8:
      return "v41_fp8 or v41_fp4";
    case Record::kV41Fp8Row:
      return "v41_fp8_row or v41_fp4_row";
    case Record::kV4Fp8:
      return "v4_fp8 or v41_main_fp4";
    default:
      return record_name(main);
  }
}

bool is_pair(Record main, Record extra) {
  const std::string list = " " + partners(main) + " ";
  return list.find(std::string(" ") + record_name(extra) + " ") != std::string::npos;
}

TEST(SparseDecodeErrors, Pairs) {
  int accepted = 0;
  int refused = 0;
  for (Record main : {Record::kV32Fp8, Record::kV32NopeFp8, Record::kV4Fp8, Record::kV41Fp8,
                      Record::kV41Fp8Row, Record::kV32Nvfp4, Record::kBf16}) {
    const int64_t d = record_dim(main) == 0 ? 512 : record_dim(main);
    for (Record extra : all_records()) {
      if (record_bytes(extra, d) == 0) continue;
      SCOPED_TRACE(std::string(record_name(main)) + " + " + record_name(extra));
      Call<Args> call = sparse_decode_call(main, extra, d);
      if (is_pair(main, extra)) {
        expect_accepted(call);
        ++accepted;
        continue;
      }
      const std::string expected =
          std::string("a record that goes with ") + record_name(main) + " (" + partners(main) + "), got ";
      expect_refused(default_call(), call, "extra_record must be " + expected + record_name(extra));
      ++refused;
      call.args.extra_record = Record::kAuto;
      const TensorView& view = call.args.extra_cache;
      const auto found = extra == Record::kBf16 ? extra : infer_record(view.size(3), d);
      if (!is_pair(main, *found)) {
        expect_refused(default_call(), call, "extra_cache must be of " + expected + record_name(*found));
      }
    }
  }
  EXPECT_EQ(accepted, 10);
  EXPECT_EQ(refused, 5 * 8 + 2 * 3 - 10);
}

TEST(SparseDecodeErrors, OddPagesNeedPadding) {
  const auto odd = [] {
    Call<Args> call = main_alone(Record::kV4Fp8, 512);
    const int64_t bytes = record_bytes(Record::kV4Fp8, 512);
    call.args.kv_cache = call.memory.input(DType::kUInt8, {3, 5, 1, bytes});
    return call;
  };
  Call<Args> call = odd();
  const int64_t page = call.args.kv_cache.stride(0);
  expect_refused(without_extra(), call,
                 "kv_cache must be of blocks at strides of whole 16 bytes, got stride(0) of " +
                     std::to_string(page) + " bytes");
  call.args.kv_cache = with_stride(call.args.kv_cache, 0, page + 8);
  expect_accepted(call, "padded blocks");
  call.args.kv_cache = with_size(with_stride(call.args.kv_cache, 0, 1), 0, 1);
  expect_accepted(call, "one block of any stride");
}

}  // namespace
}  // namespace tilewise::errors
