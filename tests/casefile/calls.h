// Small calls of every operator, and what there is to compare of a call and its loaded copy.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "casefile/fields.h"
#include "casefile/runs.h"
#include "tests/errors/calls.h"
#include "tests/errors/refusal.h"
#include "tests/errors/training_calls.h"
#include "tilewise/case_file.h"

namespace tilewise::casefile {

struct AnyCall {
  CaseArgs args;
  errors::Memory memory;
};

/// A valid call of every operator, with every option and tensor that it may have at once.
inline std::vector<AnyCall> every_call() {
  std::vector<AnyCall> calls;
  const auto add = [&](auto call) { calls.push_back({call.args, std::move(call.memory)}); };
  add(errors::dense_decode_call());
  add(errors::dense_decode_fp8_call());
  add(errors::sparse_decode_call());
  add(errors::sparse_prefill_call());
  add(errors::sparse_prefill_sink_call());
  add(errors::fused_prefill_call());
  add(errors::fused_decode_call());
  add(errors::fused_decode_partials_call());
  add(errors::combine_partials_call());
  add(errors::combine_partials_fused_call());
  add(errors::quantize_kv_call());
  add(errors::dequantize_kv_call());
  add(errors::append_kv_call());
  add(errors::permute_q_b_proj_call());
  add(errors::permute_wv_proj_call());
  add(errors::dense_prefill_fwd_call());
  add(errors::dense_prefill_bwd_call());
  add(errors::block_sparse_prefill_fwd_call());
  add(errors::block_sparse_prefill_bwd_call());
  add(errors::expand_block_selection_call());
  add(errors::invert_block_selection_call());
  add(errors::sparse_prefill_bwd_call());
  return calls;
}

inline std::vector<uint8_t> elements(const TensorView& view) {
  std::vector<uint8_t> bytes;
  for_each_run(view, [&](const uint8_t* run, int64_t n) { bytes.insert(bytes.end(), run, run + n); });
  return bytes;
}

/// Hands every tensor that is given to visit(name, view, access).
template <class Visit>
struct TensorVisitor {
  Visit visit;

  void tensor(const char* name, const TensorView& view, Access access) {
    if (view) visit(name, view, access);
  }
  template <class T>
  void option(const char*, const T&) {}
};
template <class Visit>
void each_tensor(CaseArgs args, const Visit& visit) {
  TensorVisitor<Visit> visitor{visit};
  std::visit([&](auto& a) { each_field(a, visitor); }, args);
}

/// A line for every member of an argument struct; tensors that are read with a hash of their elements.
struct Lister {
  std::vector<std::string> lines;
  bool with_data = true;

  void tensor(const char* name, const TensorView& view, Access access) {
    std::string line = fmt::format("{}: {}", name, to_string(view));
    if (view) {
      line += fmt::format(", strides [{}]", fmt::join(view.strides(), ", "));
      const auto address = reinterpret_cast<uintptr_t>(view.data());
      const bool somewhere = view.numel() * size_of(view.dtype()) > 0 && address != 0;
      line += somewhere ? fmt::format(", {} past 64", address % 64) : ", nowhere";
      if (somewhere && access != Access::kWritten && with_data) {
        const std::vector<uint8_t> bytes = elements(view);
        const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        line += fmt::format(", contents {:016x}", std::hash<std::string_view>()(text));
      }
    }
    lines.push_back(line);
  }
  void option(const char* name, float value) { lines.push_back(fmt::format("{}: {}", name, value)); }
  void option(const char* name, int64_t value) { lines.push_back(fmt::format("{}: {}", name, value)); }
  void option(const char* name, bool value) { lines.push_back(fmt::format("{}: {}", name, value)); }
  void option(const char* name, Record value) {
    lines.push_back(fmt::format("{}: record {}", name, static_cast<int32_t>(value)));
  }
  void option(const char* name, Window value) {
    lines.push_back(fmt::format("{}: window {} {}", name, value.left, value.right));
  }
  void option(const char* name, std::optional<float> value) {
    lines.push_back(value ? fmt::format("{}: {}", name, *value) : fmt::format("{}: none", name));
  }
};

inline std::vector<std::string> lines_of(CaseArgs args, bool with_data = true) {
  Lister lister;
  lister.with_data = with_data;
  lister.lines.emplace_back(operator_name(args));
  std::visit([&](auto& a) { each_field(a, lister); }, args);
  return lister.lines;
}

inline bool has_plan(const CaseArgs& args) {
  return std::visit([]<class A>(const A& a) { return requires { plan(a, Device::cpu()); }; }, args);
}

/// Plans the call, or runs it where there are no plans.
inline void plan_or_run(const CaseArgs& args) {
  std::visit(
      []<class A>(const A& a) {
        if constexpr (requires { plan(a, Device::cpu()); }) {
          plan(a, Device::cpu());
        } else {
          errors::once(a);
        }
      },
      args);
}

template <class Body>
std::string text_of_error(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// A folder that goes away with the object.
class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "tilewise-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      found.push_back(entry.path().filename());
    std::sort(found.begin(), found.end());
    return found;
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

}  // namespace tilewise::casefile
