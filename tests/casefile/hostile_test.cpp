// Damaged and hostile case files: every one is refused with a text that says what is wrong.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "tests/casefile/calls.h"

namespace tilewise::casefile {
namespace {

using nlohmann::json;

/// A case file in parts that can be spoilt.
struct Parts {
  json header;
  std::string data;

  std::string bytes() const { return with_header(header.dump()); }
  std::string with_header(const std::string& text) const {
    const uint64_t length = text.size();
    std::string file(sizeof(length), '\0');
    std::memcpy(file.data(), &length, sizeof(length));
    return file + text + data;
  }
  json inner(const char* key) const { return json::parse(header["__metadata__"][key].get<std::string>()); }
  void set_inner(const char* key, const json& value) { header["__metadata__"][key] = value.dump(); }
};

/// combine_partials of one row of eight columns: 32 bytes of out_partials, then 4 of lse_partials.
Parts valid_parts() {
  static const float partials[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  static const float lse[1] = {0.5f};
  static float out[8] = {};
  CombinePartialsArgs args;
  args.out_partials = {partials, DType::kFP32, {1, 1, 1, 8}};
  args.lse_partials = {lse, DType::kFP32, {1, 1, 1}};
  args.out = {out, DType::kFP32, {1, 1, 8}};
  const Folder folder;
  save_case(folder.file("call"), args);
  const std::string file = read_file(folder.file("call"));
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  return {json::parse(file.substr(8, length)), file.substr(8 + length)};
}

/// What load_case says about a file of these bytes, after "load_case: <path>: ".
std::string refusal(const std::string& bytes) {
  const Folder folder;
  const std::string path = folder.file("call");
  write_file(path, bytes);
  try {
    load_case(path);
  } catch (const CaseFileError& error) {
    const std::string what = error.what();
    const std::string begin = "load_case: " + path + ": ";
    return what.rfind(begin, 0) == 0 ? what.substr(begin.size()) : "without the file's name: " + what;
  }
  return "accepted";
}

struct Spoiling {
  std::string what;
  std::function<std::string(Parts)> bytes;
  std::string text;  // "<most>" stands for the bytes of memory that a file of this size may ask for
};

/// A row that changes the header as a value.
Spoiling header_row(const std::string& what, const std::function<void(json&)>& change,
                    const std::string& text) {
  return {what,
          [change](Parts parts) {
            change(parts.header);
            return parts.bytes();
          },
          text};
}

/// A row that changes one of the texts of JSON in the metadata.
Spoiling inner_row(const std::string& what, const char* key, const std::function<void(json&)>& change,
                   const std::string& text) {
  return {what,
          [key, change](Parts parts) {
            json value = parts.inner(key);
            change(value);
            parts.set_inner(key, value);
            return parts.bytes();
          },
          text};
}

void expect_refusals(const std::vector<Spoiling>& rows) {
  const Parts valid = valid_parts();
  ASSERT_EQ(refusal(valid.bytes()), "accepted");
  for (const Spoiling& row : rows) {
    const std::string bytes = row.bytes(valid);
    std::string text = row.text;
    const size_t place = text.find("<most>");
    if (place != std::string::npos) {
      const auto file_bytes = static_cast<int64_t>(bytes.size());
      text.replace(place, std::string("<most>").size(),
                   std::to_string((int64_t{256} << 20) + 64 * file_bytes));
    }
    EXPECT_EQ(refusal(bytes), text) << row.what;
  }
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(HostileFile, Container) {
  const size_t file_size = valid_parts().bytes().size();
  const std::string of_file =
      std::to_string(file_size - 8) + " bytes in a file of " + std::to_string(file_size);
  const auto with_length = [](uint64_t length) {
    return [length](const Parts& parts) {
      std::string bytes = parts.bytes();
      std::memcpy(bytes.data(), &length, sizeof(length));
      return bytes;
    };
  };
  expect_refusals({
      {"empty", [](const Parts&) { return std::string(); }, "file must be of at least 8 bytes, got 0 bytes"},
      {"7 bytes", [](const Parts& p) { return p.bytes().substr(0, 7); },
       "file must be of at least 8 bytes, got 7 bytes"},
      {"no header", [](const Parts&) { return std::string(8, '\0'); },
       "header must be JSON, got a mistake at byte 1"},
      {"a header longer than the file", with_length(file_size - 7),
       "header must be of at most " + of_file + ", got a length of " + std::to_string(file_size - 7)},
      {"a header of 2^64-1 bytes", with_length(UINT64_MAX),
       "header must be of at most " + of_file + ", got a length of 18446744073709551615"},
      {"text instead of JSON", [](const Parts& p) { return p.with_header("{not json"); },
       "header must be JSON, got a mistake at byte 3"},
      {"bytes that are no UTF-8", [](const Parts& p) { return p.with_header("{\"\xff\": 1}"); },
       "header must be JSON, got a mistake at byte 3"},
      {"a header cut short", [](const Parts& p) { return p.with_header(p.header.dump().substr(0, 20)); },
       "header must be JSON, got a mistake at byte 21"},
      {"a list", [](const Parts& p) { return p.with_header("[1, 2]"); },
       "header must be a JSON object, got [1,2]"},
      {"something behind the header", [](const Parts& p) { return p.with_header(p.header.dump() + "{}"); },
       "header must be JSON, got a mistake at byte " +
           std::to_string(valid_parts().header.dump().size() + 1)},
      {"100,000 levels", [](const Parts& p) { return p.with_header(repeated("[", 100000)); },
       "header must be JSON of at most 4 levels, got more of them"},
      {"100,000 levels of objects", [](const Parts& p) { return p.with_header(repeated("{\"a\":", 100000)); },
       "header must be JSON of at most 4 levels, got more of them"},
      {"a name twice",
       [](const Parts& p) {
         const std::string entry = "\"lse_partials\":" + p.header["lse_partials"].dump();
         return p.with_header("{" + entry + "," + p.header.dump().substr(1));
       },
       "header must be JSON that has each name once, got \"lse_partials\" twice"},
      {"a number past any range", [](const Parts& p) { return p.with_header("{\"a\": 1e999999}"); },
       "header must be JSON, got a number out of range"},
      {"data cut short", [](const Parts& p) { return p.bytes().substr(0, p.bytes().size() - 1); },
       "tensor \"lse_partials\": data_offsets must be [begin, end] inside the 35 bytes of data, got [32,36]"},
      {"no data", [](const Parts& p) { return p.bytes().substr(0, p.bytes().size() - 36); },
       "tensor \"lse_partials\": data_offsets must be [begin, end] inside the 0 bytes of data, got [32,36]"},
      {"garbage at the end", [](const Parts& p) { return p.bytes() + "more"; },
       "file must be at its end after 36 bytes of data, got 40 bytes of data"},
  });
}

TEST(HostileFile, Tensors) {
  const auto change = [](const char* key, const json& value) {
    return [key, value](json& header) { header["out_partials"][key] = value; };
  };
  const std::string t = "tensor \"out_partials\"";
  expect_refusals({
      header_row(
          "no object", [](json& h) { h["out_partials"] = 3; }, t + " must be a JSON object, got 3"),
      header_row(
          "no dtype", [](json& h) { h["out_partials"].erase("dtype"); },
          t + ": dtype must be given, got nothing"),
      header_row("an unknown dtype", change("dtype", "F128"),
                 t + ": dtype must be one of BF16, F16, F32, F64, F8_E4M3, F8_E8M0, I8, U8, I32, I64, BOOL, "
                     "got \"F128\""),
      header_row("a dtype that would fool a terminal", change("dtype", "\x1b[31m"),
                 t + ": dtype must be one of BF16, F16, F32, F64, F8_E4M3, F8_E8M0, I8, U8, I32, I64, BOOL, "
                     "got \"\\u001b[31m\""),
      header_row("a dtype that is a number", change("dtype", 7), t + ": dtype must be a string, got 7"),
      header_row("another dtype of that size", change("dtype", "I32"),
                 "tensor out_partials must be stored as F32 [1,1,1,8], got I32 [1,1,1,8]"),
      header_row("another shape of that size", change("shape", {1, 1, 2, 4}),
                 "tensor out_partials must be stored as F32 [1,1,1,8], got F32 [1,1,2,4]"),
      header_row("a size of 2^63", change("shape", {9223372036854775808u, 0}),
                 t + ": shape must be a whole number of at least 0, got 9223372036854775808"),
      header_row("2^63 bytes", change("shape", {1073741824, 1073741824, 8}),
                 t + ": shape must be of less than 2^63 bytes, got [1073741824,1073741824,8]"),
      header_row("a negative size", change("shape", {-1, 8}),
                 t + ": shape must be a whole number of at least 0, got -1"),
      header_row("a broken size", change("shape", {1.5, 8}),
                 t + ": shape must be a whole number of at least 0, got 1.5"),
      header_row("a shape that is none", change("shape", "8"), t + ": shape must be a JSON list, got \"8\""),
      header_row("a shape that is too large for the data", change("shape", {1, 1, 1, 9}),
                 t + ": data_offsets must be 36 bytes apart for F32 [1,1,1,9], got [0,32]"),
      header_row("negative offsets", change("data_offsets", {-32, 0}),
                 t + ": data_offsets must be a whole number of at least 0, got -32"),
      header_row("offsets in the wrong order", change("data_offsets", {32, 0}),
                 t + ": data_offsets must be [begin, end] inside the 36 bytes of data, got [32,0]"),
      header_row("offsets past the end", change("data_offsets", {8, 40}),
                 t + ": data_offsets must be [begin, end] inside the 36 bytes of data, got [8,40]"),
      header_row(
          "offsets of 2^63-1", change("data_offsets", {0, 9223372036854775807}),
          t + ": data_offsets must be [begin, end] inside the 36 bytes of data, got [0,9223372036854775807]"),
      header_row("one offset", change("data_offsets", {0}),
                 t + ": data_offsets must be [begin, end] inside the 36 bytes of data, got [0]"),
      header_row("two tensors in one place", change("data_offsets", {4, 36}),
                 t + " must be at byte 0 of the data, where the one before ends, got byte 4"),
      header_row(
          "a tensor inside another",
          [](json& h) { h["more"] = {{"dtype", "U8"}, {"shape", {4}}, {"data_offsets", {8, 12}}}; },
          "tensor \"more\" must be at byte 32 of the data, where the one before ends, got byte 8"),
      {"a tensor that nobody asked for",
       [](Parts p) {
         p.header["more"] = {{"dtype", "U8"}, {"shape", {2}}, {"data_offsets", {36, 38}}};
         p.data += "xx";
         return p.bytes();
       },
       "file must be without tensors but for the inputs of combine_partials, got \"more\""},
      {"a tensor that is not there",
       [](Parts p) {
         p.header.erase("lse_partials");
         p.data.resize(32);
         return p.bytes();
       },
       "tensor lse_partials must be stored, got nothing"},
  });
}

TEST(HostileFile, Metadata) {
  const auto meta = [](const char* key, const json& value) {
    return [key, value](json& header) { header["__metadata__"][key] = value; };
  };
  const std::string operators =
      "dense_decode, sparse_decode, sparse_prefill_fwd, fused_prefill, fused_decode, fused_decode_partials, "
      "combine_partials, combine_partials_fused, quantize_kv, dequantize_kv, append_kv, permute_q_b_proj, "
      "permute_wv_proj, dense_prefill_fwd, dense_prefill_bwd, block_sparse_prefill_fwd, "
      "block_sparse_prefill_bwd, expand_block_selection, invert_block_selection or "
      "sparse_prefill_bwd";
  expect_refusals({
      header_row(
          "no metadata", [](json& h) { h.erase("__metadata__"); },
          "__metadata__: tilewise_case must be given, got nothing"),
      header_row(
          "metadata that is none", [](json& h) { h["__metadata__"] = "x"; },
          "__metadata__ must be a JSON object, got \"x\""),
      header_row("a value that is no text", meta("operator", 5),
                 "__metadata__: \"operator\" must be a string, got 5"),
      header_row("another version", meta("tilewise_case", "2"), "tilewise_case must be \"1\", got \"2\""),
      header_row(
          "no operator", [](json& h) { h["__metadata__"].erase("operator"); },
          "__metadata__: operator must be given, got nothing"),
      header_row("an unknown operator", meta("operator", "combine"),
                 "operator must be " + operators + ", got \"combine\""),
      header_row("an operator of other arguments", meta("operator", "quantize_kv"),
                 "option record must be given, got nothing"),
      header_row("a data mark of neither kind", meta("data", "some"),
                 "data must be \"saved\" or \"left out\", got \"some\""),
      header_row("data that should not be there", meta("data", "left out"),
                 "file must be without tensors but for the inputs of combine_partials, got \"lse_partials\""),
      header_row("options that are no JSON", meta("options", "base2"),
                 "options must be JSON, got a mistake at byte 1"),
      header_row("options that are no object", meta("options", "[]"),
                 "options must be a JSON object, got []"),
      header_row("an option twice", meta("options", R"({"base2": true, "base2": false})"),
                 "options must be JSON that has each name once, got \"base2\" twice"),
      header_row("deep options", meta("options", R"({"base2": [[[[[1]]]]]})"),
                 "options must be JSON of at most 4 levels, got more of them"),
      inner_row(
          "no option", "options", [](json& o) { o.erase("base2"); },
          "option base2 must be given, got nothing"),
      inner_row(
          "an option of another type", "options", [](json& o) { o["base2"] = 1; },
          "option base2 must be true or false, got 1"),
      inner_row(
          "an option too many", "options", [](json& o) { o["causal"] = true; },
          "options must be those of combine_partials, got \"causal\""),
      inner_row(
          "tensors that are no object", "tensors", [](json& t) { t = json::array(); },
          "tensors must be a JSON object, got []"),
      inner_row(
          "a tensor of another operator", "tensors", [](json& t) { t["kv"] = t["out"]; },
          "tensors must be those of combine_partials, got \"kv\""),
      inner_row(
          "memory that is no list", "memory", [](json& m) { m = 1; }, "memory must be a JSON list, got 1"),
  });
}

TEST(HostileFile, Views) {
  const auto view = [](const char* key, const json& value) {
    return [key, value](json& tensors) { tensors["out_partials"][key] = value; };
  };
  const auto piece = [](const char* key, const json& value) {
    return [key, value](json& memory) { memory[0][key] = value; };
  };
  const std::string t = "tensor out_partials";
  expect_refusals({
      inner_row(
          "no object", "tensors", [](json& v) { v["out_partials"] = nullptr; },
          t + " must be a JSON object, got null"),
      inner_row(
          "no strides", "tensors", [](json& v) { v["out_partials"].erase("strides"); },
          t + ": strides must be given, got nothing"),
      inner_row("an unknown type", "tensors", view("dtype", "float8_e5m2"),
                t + ": dtype must be an element type, got \"float8_e5m2\""),
      inner_row("too few strides", "tensors", view("strides", {8, 1}),
                t + " must be a view that can be, got TensorView: shape must be as long as strides, got 4 "
                    "sizes and 2 "
                    "strides"),
      inner_row(
          "six dimensions", "tensors",
          [](json& v) {
            v["out_partials"]["shape"] = {1, 1, 1, 1, 1, 8};
            v["out_partials"]["strides"] = {8, 8, 8, 8, 8, 1};
          },
          t + " must be a view that can be, got TensorView: shape must be of at most 5 dimensions, got 6 of "
              "them"),
      inner_row("strides past 2^63 bytes", "tensors", view("strides", {1, 1, 1, 4611686018427387904}),
                t + " must be a view that can be, got TensorView: shape must be of less than 2^63 bytes, got "
                    "float32 "
                    "[1, 1, 1, 8] with strides [1, 1, 1, 4611686018427387904]"),
      inner_row("a stride of -2^63", "tensors", view("strides", {1, 1, 1, INT64_MIN}),
                t + " must be a view that can be, got TensorView: shape must be of less than 2^63 bytes, got "
                    "float32 "
                    "[1, 1, 1, 8] with strides [1, 1, 1, -9223372036854775808]"),
      inner_row("strides out of the memory", "tensors", view("strides", {8, 8, 8, 2}),
                t + " must be inside its 32 bytes of memory, got 60 bytes from byte 0 on"),
      inner_row("strides to before the memory", "tensors", view("strides", {8, 8, 8, -1}),
                t + " must be inside its 32 bytes of memory, got 32 bytes from byte -28 on"),
      inner_row("a place behind the memory", "tensors", view("at", 33),
                t + ": at must be a whole number in 0 to 32, got 33"),
      inner_row("a place past its end", "tensors", view("at", 4),
                t + " must be inside its 32 bytes of memory, got 32 bytes from byte 4 on"),
      inner_row("memory that is not there", "tensors", view("memory", 3),
                t + ": memory must be one of 3, got 3"),
      inner_row("memory of a negative number", "tensors", view("memory", -1),
                t + ": memory must be a whole number of at least 0, got -1"),
      inner_row("other memory", "tensors", view("shape", {1, 1, 1, 4}),
                t + " must be stored as F32 [1,1,1,4], got F32 [1,1,1,8]"),
      inner_row(
          "2^63-1 bytes of memory", "memory", [](json& m) { m = {{{"bytes", INT64_MAX}, {"past", 0}}}; },
          "memory must be of at most <most> bytes in all for a file of this size, got "
          "[{\"bytes\":9223372036854775807,\"past\":0}]"),
      inner_row("no bytes of memory", "memory", piece("bytes", 0),
                "memory 0: bytes must be a whole number of at least 1, got 0"),
      inner_row("an address out of step", "memory", piece("past", 64),
                "memory 0: past must be a whole number in 0 to 63, got 64"),
      inner_row(
          "a piece that is none", "memory", [](json& m) { m[0] = 3; },
          "memory 0 must be a JSON object, got 3"),
      inner_row(
          "more elements than bytes", "tensors",
          [](json& v) {
            v["out"]["shape"] = {1, 1000000000, 8};
            v["out"]["strides"] = {0, 0, 1};
          },
          "tensors must be of at most <most> bytes in all for a file of this size, got 32000000000 more for "
          "out"),
  });
}

TEST(HostileFile, ThatIsNoFile) {
  const Folder folder;
  EXPECT_EQ(text_of_error([&] { load_case(folder.file("none")); }),
            "load_case: " + folder.file("none") + ": file must be readable, got No such file or directory");
  EXPECT_EQ(text_of_error([&] { load_case(folder.path()); }),
            "load_case: " + folder.path() + ": file must be readable, got Is a directory");
}

TEST(HostileFile, OfFourTebibytes) {
  // All holes: nothing of it may be held in memory.
  const Folder folder;
  const Parts parts = valid_parts();
  write_file(folder.file("call"), parts.bytes());
  constexpr uint64_t kSize = uint64_t{1} << 42;
  std::filesystem::resize_file(folder.file("call"), kSize);
  EXPECT_EQ(text_of_error([&] { load_case(folder.file("call")); }),
            "load_case: " + folder.file("call") + ": file must be at its end after 36 bytes of data, got " +
                std::to_string(kSize - 8 - parts.header.dump().size()) + " bytes of data");
}

TEST(HostileFile, OptionsOfEveryKind) {
  struct Row {
    const char* option;
    json value;
    std::string text;
  };
  errors::Call<FusedDecodeArgs> fused = errors::fused_decode_call();
  errors::Call<DenseDecodeArgs> dense = errors::dense_decode_call();
  const Folder folder;
  const auto refusal_with = [&](const CaseArgs& args, const Row& row) {
    save_case(folder.file("call"), args);
    const std::string file = read_file(folder.file("call"));
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof(length));
    Parts parts{json::parse(file.substr(8, length)), file.substr(8 + length)};
    json options = parts.inner("options");
    options[row.option] = row.value;
    parts.set_inner("options", options);
    return refusal(parts.bytes());
  };
  const std::string number = R"( must be a number of 32 bits, "inf", "-inf" or "nan", got )";
  for (const Row& row :
       {Row{"softmax_scale", "1.0", "option softmax_scale" + number + "\"1.0\""},
        Row{"softmax_scale", 1e39, "option softmax_scale" + number + "1e+39"},
        Row{"softmax_scale", nullptr, "option softmax_scale" + number + "null"},
        Row{"q_norm_eps", true, "option q_norm_eps" + number + "true"},
        Row{"n_groups", 1.0, "option n_groups must be a whole number of 64 bits, got 1.0"},
        Row{"record", "v9", "option record must be auto, a record's name or id, got \"v9\""},
        Row{"record", true, "option record must be auto, a record's name or id, got true"},
        Row{"record", 4294967296,
            "option record must be a whole number in -2147483648 to 2147483647, "
            "got 4294967296"},
        Row{"record", 1.5, "option record must be a whole number in -2147483648 to 2147483647, got 1.5"}}) {
    EXPECT_EQ(refusal_with(fused.args, row), row.text);
  }
  for (const Row& row :
       {Row{"window", {1}, "option window must be a pair, got [1]"},
        Row{"window", "wide", "option window must be a JSON list, got \"wide\""},
        Row{"window", {1, 2.5}, "option window must be a whole number of 64 bits, got 2.5"}}) {
    EXPECT_EQ(refusal_with(dense.args, row), row.text);
  }
}

}  // namespace
}  // namespace tilewise::casefile
