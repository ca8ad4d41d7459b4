// Random contents: values, token lists, lengths, slots.
#include "cases/fill.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/numeric.h"
#include "reference/dequant.h"

namespace tilewise::cases {
namespace {

constexpr int32_t kLowest = std::numeric_limits<int32_t>::min();
constexpr int32_t kHighest = std::numeric_limits<int32_t>::max();
constexpr int64_t kDistinctTokens = 8192;
constexpr float kInf = std::numeric_limits<float>::infinity();

// Whether entry i of a list of `width` belongs to a hole. `list` numbers the lists of a tensor.
bool in_hole(Holes holes, int64_t i, int64_t width, int64_t list) {
  switch (holes) {
    case Holes::kNone:
      return false;
    case Holes::kLeading:
      return i < width / 3;
    case Holes::kInterleaved:
      return i % 2 == 1;
    case Holes::kTrailing:
      return i >= width - width / 3;
    case Holes::kAll:
      return list % 2 == 0;
    case Holes::kHuge:
      return (i + list) % 3 == 1;
  }
  return false;
}

int32_t invalid_entry(Holes holes, int64_t i, int64_t rows) {
  if (holes != Holes::kHuge) return -1;
  const auto end = static_cast<int32_t>(std::min<int64_t>(rows, kHighest));
  const std::array<int32_t, 6> values = {kLowest, kHighest, end, -1, end < kHighest - 5 ? end + 5 : kHighest,
                                         -2};
  return values[static_cast<size_t>(i % 6)];
}

// The valid ones are distinct, as far as there are `rows` of them, until duplicates are wanted.
void fill_list(int32_t* out, int64_t width, int64_t list, int64_t rows, const Case& c, Stream64 random) {
  const Shuffle shuffle({random.bits(static_cast<uint64_t>(list))}, std::max<int64_t>(rows, 1));
  int64_t used = 0;
  for (int64_t i = 0; i < width; ++i) {
    if (rows == 0 || in_hole(c.holes, i, width, list)) {
      out[i] = invalid_entry(c.holes, i + list, rows);
    } else if (c.duplicates && i % 3 == 2) {
      out[i] = out[i - 2];
    } else {
      out[i] = static_cast<int32_t>(shuffle.at(used++ % rows));
    }
  }
}

// The channel of the element at `place` of a token of permuted q.
int64_t channel_of(int64_t place, int64_t h_q) { return place / (16 * h_q) * 16 + place % 16; }

float offset_of_q(const Case& c) {
  return c.logit_offset * std::sqrt(static_cast<float>(c.d_qk)) / static_cast<float>(kOffsetColumns);
}

}  // namespace

void store_float(uint8_t* p, DType type, float x) {
  if (type == DType::kE4M3) {
    *p = f32_to_e4m3(x);
  } else if (type == DType::kFP32) {
    std::memcpy(p, &x, 4);
  } else {
    const uint16_t bits = type == DType::kBF16 ? f32_to_bf16_bits(x) : f32_to_f16_bits(x);
    std::memcpy(p, &bits, 2);
  }
}

void for_each_row(const TensorView& view, const std::function<void(int64_t, uint8_t*)>& visit) {
  if (view.numel() == 0) return;
  const int last = view.rank() - 1;
  const int64_t rows = view.numel() / view.size(last);
#pragma omp parallel for schedule(static) if (view.numel() > 100000)
  for (int64_t row = 0; row < rows; ++row) {
    int64_t offset = 0;
    int64_t rest = row;
    for (int dim = last - 1; dim >= 0; --dim) {
      offset += rest % view.size(dim) * view.stride(dim);
      rest /= view.size(dim);
    }
    visit(row, view.data_as<uint8_t>() + offset * size_of(view.dtype()));
  }
}

void fill_normal(const TensorView& view, Stream64 random, float scale) {
  const int64_t n = view.size(view.rank() - 1);
  const int64_t element = size_of(view.dtype());
  for_each_row(view, [&](int64_t row, uint8_t* p) {
    for (int64_t i = 0; i < n; ++i) {
      store_float(p + i * element, view.dtype(), scale * random.normal(static_cast<uint64_t>(row * n + i)));
    }
  });
}

void fill_q(const TensorView& q, const Case& c, Stream64 random) {
  fill_normal(q, random, c.q_scale);
  if (c.logit_offset == 0.0f) return;
  const float x = offset_of_q(c);
  const int64_t element = size_of(q.dtype());
  for_each_row(q, [&](int64_t row, uint8_t* p) {
    for (int64_t i = 0; i < c.d_qk; ++i) {
      const int64_t channel = is_fused(c.op) ? channel_of(row % c.h_q * c.d_qk + i, c.h_q) : i;
      if (channel < kOffsetColumns) store_float(p + i * element, q.dtype(), x);
    }
  });
}

void make_kv_row(const Case& c, Stream64 random, int64_t row, uint16_t* out) {
  const Stream64 sizes = random.child("sizes");
  const auto first = static_cast<uint64_t>(row * c.d_qk);
  float size = 1.0f;
  for (int64_t i = 0; i < c.d_qk; ++i) {
    const uint64_t at = first + static_cast<uint64_t>(i);
    if (i % 16 == 0) size = c.kv_scale * std::ldexp(1.0f, static_cast<int>(sizes.below(at, 4)) - 2);
    const bool constant = c.logit_offset != 0.0f && i < kOffsetColumns;
    out[i] = f32_to_bf16_bits(constant ? 1.0f : size * random.normal(at));
  }
}

void fill_kv_rows(const TensorView& kv, const Case& c, Stream64 random) {
  for_each_row(kv, [&](int64_t row, uint8_t* p) {
    std::vector<uint16_t> values(static_cast<size_t>(c.d_qk));
    make_kv_row(c, random, row, values.data());
    const int64_t element = size_of(kv.dtype());
    for (int64_t i = 0; i < c.d_qk; ++i) {
      store_float(p + i * element, kv.dtype(), bf16_bits_to_f32(values[static_cast<size_t>(i)]));
    }
  });
}

void fill_cache(const TensorView& cache, const Case& c, Record record, Stream64 random) {
  const reference::Pages pages = reference::pages_of(cache);
  // Quantising takes a while: a large cache repeats its first pages.
  const int64_t made = std::min(pages.num_blocks, std::max<int64_t>(1, kDistinctTokens / pages.page));
#pragma omp parallel for schedule(static)
  for (int64_t slot = 0; slot < made * pages.page; ++slot) {
    std::vector<uint16_t> values(static_cast<size_t>(c.d_qk));
    make_kv_row(c, random, slot, values.data());
    reference::encode_token(record, values.data(), pages, slot);
  }
  for (int64_t block = made; block < pages.num_blocks; ++block) {
    std::memcpy(pages.data + block * pages.block_stride, pages.data + block % made * pages.block_stride,
                static_cast<size_t>(pages.page * pages.token_bytes));
  }
}

void fill_hard_rows(const TensorView& x, Stream64 random) {
  const int64_t d = x.size(1);
  const Stream64 sizes = random.child("sizes");
  for_each_row(x, [&](int64_t row, uint8_t* p) {
    for (int64_t i = 0; i < d; ++i) {
      const auto at = static_cast<uint64_t>(row * d + i);
      // Sizes belong to 16 columns; three rows of four stay where scales are neither clamped nor saturated.
      const int64_t spread = row % 4 == 3 ? 120 : 12;
      const auto exponent =
          static_cast<int>(sizes.below(at - static_cast<uint64_t>(i % 16), 2 * spread) - spread);
      float value = std::ldexp(random.normal(at), exponent);
      const int64_t special = sizes.below(at, 4096);
      if (row % 16 == 5) value = std::copysign(0.0f, value);
      if (row % 8 == 6 && special < 8) value = std::copysign(kInf, value);
      if (row % 8 == 7 && special < 8) value = std::nanf("");
      if (row % 2 == 1 && special >= 4000) value = std::copysign(0.0f, value);
      store_float(p + i * 2, DType::kBF16, value);
    }
  });
}

void fill_bytes(const TensorView& view, Stream64 random) {
  const int64_t bytes = view.size(view.rank() - 1) * size_of(view.dtype());
  for_each_row(view, [&](int64_t row, uint8_t* p) {
    for (int64_t i = 0; i < bytes; ++i)
      p[i] = static_cast<uint8_t>(random.bits(static_cast<uint64_t>(row * bytes + i)));
  });
}

void fill_lists(const TensorView& indices, int64_t rows, const Case& c, Stream64 random) {
  const int64_t width = indices.size(indices.rank() - 1);
  for_each_row(indices, [&](int64_t list, uint8_t* p) {
    fill_list(reinterpret_cast<int32_t*>(p), width, list, rows, c, random);
  });
}

void fill_slots(const TensorView& slots, int64_t rows, const Case& c, Stream64 random) {
  const int64_t n = slots.size(0);
  std::vector<int32_t> list(static_cast<size_t>(n));
  // The second list: kAll leaves the slots of lists with odd numbers whole, which would write nothing
  // otherwise.
  fill_list(list.data(), n, 1, rows, c, random);
  for (int64_t i = 0; i < n; ++i) {
    if (slots.dtype() == DType::kInt32) {
      slots.data_as<int32_t>()[i] = list[static_cast<size_t>(i)];
      continue;
    }
    int64_t slot = list[static_cast<size_t>(i)];
    if (slot == kLowest) slot = std::numeric_limits<int64_t>::min();
    // Its low 32 bits alone would be a valid slot.
    if (slot == kHighest) slot = int64_t{1} << 32;
    slots.data_as<int64_t>()[i] = slot;
  }
}

void fill_lengths(const TensorView& lengths, int64_t width, Lengths mode, Stream64 random) {
  for (int64_t i = 0; i < lengths.size(0); ++i) {
    int64_t length = random.below(static_cast<uint64_t>(i), width + 1);
    if (mode == Lengths::kNone || i % 5 == 2) length = width;
    if (mode == Lengths::kVaried && i % 5 == 1) length = 0;
    if (mode == Lengths::kOutside && i % 5 == 1) length = i % 2 == 0 ? -3 : kLowest;
    if (mode == Lengths::kOutside && i % 5 == 0) length = i % 2 == 0 ? width + 9 : kHighest;
    lengths.data_as<int32_t>()[i] = static_cast<int32_t>(length);
  }
}

void fill_block_table(const TensorView& table, int64_t num_blocks, const Case& c, Stream64 random) {
  const int64_t width = table.size(1);
  const Shuffle shuffle(random, std::max<int64_t>(num_blocks, 1));
  for_each_row(table, [&](int64_t row, uint8_t* p) {
    auto* out = reinterpret_cast<int32_t*>(p);
    for (int64_t i = 0; i < width; ++i) {
      const bool hole = num_blocks == 0 || in_hole(c.holes, i, width, row);
      out[i] = hole ? invalid_entry(c.holes, i + row, num_blocks)
                    : static_cast<int32_t>(shuffle.at((row * width + i) % num_blocks));
    }
  });
}

void fill_sink(const TensorView& sink, const Case& c, Stream64 random) {
  const int64_t element = size_of(sink.dtype());
  const bool extreme = c.sink == Sink::kExtreme || c.sink == Sink::kBias;
  for (int64_t h = 0; h < sink.size(0); ++h) {
    float x = c.logit_offset + 3.0f * random.normal(static_cast<uint64_t>(h));
    if (extreme && h % 5 == 1) x = -kInf;
    if (extreme && h % 5 == 3) x = kInf;
    store_float(sink.data_as<uint8_t>() + h * element, sink.dtype(), x);
  }
}

void fill_positions(const TensorView& positions, Stream64 random) {
  for (int64_t i = 0; i < positions.size(0); ++i) {
    int64_t position = random.below(static_cast<uint64_t>(i), kMaxPositions);
    if (i % 7 == 5) position = kLowest;
    if (i % 7 == 6) position = kMaxPositions + 3;
    positions.data_as<int32_t>()[i] = static_cast<int32_t>(position);
  }
}

void fill_cos_sin(const TensorView& table) {
  for_each_row(table, [](int64_t position, uint8_t* p) {
    auto* row = reinterpret_cast<float*>(p);
    for (int i = 0; i < 32; ++i) {
      const double angle = static_cast<double>(position) * std::pow(10000.0, -i / 32.0);
      row[i] = static_cast<float>(std::cos(angle));
      row[32 + i] = static_cast<float>(std::sin(angle));
    }
  });
}

void fill_partials(const TensorView& out, const TensorView& lse, const Case& c, Stream64 random) {
  const int64_t rows = lse.size(1) * lse.size(2);
  const int64_t d = out.size(3);
  for_each_row(lse, [&](int64_t row, uint8_t* p) {
    for (int64_t h = 0; h < lse.size(2); ++h) {
      const int64_t at = row * lse.size(2) + h;
      const int64_t partial = at / rows;
      float x = c.logit_offset + 4.0f * random.normal(static_cast<uint64_t>(at));
      const bool empty = in_hole(c.holes, partial, lse.size(0), at % rows);
      if (empty) x = at % 3 == 0 && c.holes == Holes::kHuge ? kInf : -kInf;
      store_float(p + 4 * h, DType::kFP32, x);
    }
  });
  fill_normal(out, random.child("out"), c.kv_scale);
  for_each_row(out, [&](int64_t at, uint8_t* p) {
    const int64_t partial = at / rows;
    if (!in_hole(c.holes, partial, lse.size(0), at % rows)) return;
    for (int64_t i = 0; i < d; ++i) store_float(p + i * size_of(out.dtype()), out.dtype(), std::nanf(""));
  });
}

}  // namespace tilewise::cases
