// The part of a call that belongs to one query token: slices of its tensors, and calls of that token alone.
#pragma once

#include <cmath>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cases/data.h"
#include "core/numeric.h"

namespace tilewise::testing {

/// Which of a tensor's dimensions count requests and query tokens; -1: none.
struct TokenDims {
  int request = -1;
  int token = -1;
};

inline TokenDims token_dims(cases::Op op, std::string_view name) {
  const auto is = [&](std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (op == cases::Op::kDenseDecode || op == cases::Op::kSparseDecode) {
    if (is({"q", "out", "indices", "extra_indices"})) return {0, 1};
    if (is({"lse"})) return {0, 2};
    if (is({"topk_length", "extra_topk_length", "block_table", "cache_seqlens"})) return {0, -1};
    return {};
  }
  if (is({"o_accum", "lse_accum", "out_partials", "lse_partials"})) return {-1, 1};
  if (is({"q", "indices", "extra_indices", "token_positions", "topk_length", "extra_topk_length", "out",
          "out_fp8", "out_sf", "out_bf16", "max_logits", "lse", "lse_indexer"})) {
    return {-1, 0};
  }
  return {};
}

/// Elements [first, first + count) of one dimension; the view itself where `dim` is -1.
inline TensorView narrowed(const TensorView& view, int dim, int64_t first, int64_t count = 1) {
  if (dim < 0) return view;
  std::vector<int64_t> shape(view.shape().begin(), view.shape().end());
  shape[static_cast<size_t>(dim)] = count;
  const int64_t offset = first * view.stride(dim) * size_of(view.dtype());
  return {view.data_as<uint8_t>() + offset, view.dtype(), shape, view.strides()};
}

struct Token {
  int64_t request = 0;
  int64_t token = 0;

  bool operator==(const Token&) const = default;
};

inline TensorView of_token(cases::Op op, std::string_view name, const TensorView& view, Token t) {
  const TokenDims dims = token_dims(op, name);
  return narrowed(narrowed(view, dims.request, t.request), dims.token, t.token);
}

inline std::vector<Token> all_tokens(const cases::Case& c) {
  std::vector<Token> tokens;
  const bool batched = c.op == cases::Op::kDenseDecode || c.op == cases::Op::kSparseDecode;
  for (int64_t b = 0; b < (batched ? c.batch : 1); ++b) {
    for (int64_t s = 0; s < c.s_q; ++s) tokens.push_back({b, s});
  }
  return tokens;
}

/// The bits of a token's rows in all outputs.
inline std::vector<std::vector<uint8_t>> token_bits(const cases::CaseData& data, Token t) {
  std::vector<std::vector<uint8_t>> bits;
  for (const cases::Operand& o : data.operands()) {
    if (o.role != cases::Role::kInput)
      bits.push_back(cases::contents(of_token(data.what().op, o.name, o.view, t)));
  }
  return bits;
}

/// Gives an argument new memory without gaps. Data changed so must not be copied: a copy has the old memory's
/// offsets.
inline TensorView replace(cases::CaseData& data, std::string_view name, DType type,
                          const std::vector<int64_t>& shape) {
  int64_t count = 1;
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = count;
    count *= shape[i];
  }
  cases::Operand& o = data.operand(name);
  o.memory = cases::Buffer(count * size_of(type), 0);
  o.view = TensorView(o.memory.data(), type, shape, strides);
  o.initial.assign(static_cast<size_t>(o.memory.whole_bytes()), 0);
  o.memory.whole([&](uint8_t* p) { std::memset(p, 0, o.initial.size()); });
  return o.view;
}

/// A call of one token (dense_decode: of one request, for its tokens' masks depend on how many they are),
/// with outputs of its own.
inline cases::CaseData alone(const cases::CaseData& whole, Token t) {
  cases::CaseData data = whole;
  const cases::Op op = data.what().op;
  for (cases::Operand& o : data.operands()) {
    const TokenDims dims = token_dims(op, o.name);
    TensorView view = narrowed(o.view, dims.request, t.request);
    if (!cases::is_dense(op)) view = narrowed(view, dims.token, t.token);
    if (o.role == cases::Role::kInput) {
      o.view = view;
    } else {
      replace(data, o.name, view.dtype(), {view.shape().begin(), view.shape().end()});
    }
  }
  return data;
}

/// A float element of any type.
inline float float_at(const uint8_t* p, DType type) {
  float x = 0;
  uint16_t half = 0;
  switch (type) {
    case DType::kFP32:
      std::memcpy(&x, p, 4);
      return x;
    case DType::kE4M3:
      return e4m3_to_f32(*p);
    default:
      std::memcpy(&half, p, 2);
      return type == DType::kBF16 ? bf16_bits_to_f32(half) : f16_bits_to_f32(half);
  }
}

}  // namespace tilewise::testing
