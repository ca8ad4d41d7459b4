// expand_block_selection and invert_block_selection.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "casefile/on_error.h"
#include "ops/checks.h"
#include "ops/forward_check.h"
#include "visit/list.h"

namespace tilewise {
namespace {

/// A selection as [heads][rows][n]; one without heads has one.
struct Selection {
  const int32_t* ids;
  int64_t heads;
  int64_t rows;
  int64_t width;
  int64_t stride_h;
  int64_t stride_row;

  const int32_t* row(int64_t h, int64_t r) const { return ids + h * stride_h + r * stride_row; }
};

Selection selection_of(const TensorView& q2k) {
  const int rows = q2k.rank() - 2;
  return {q2k.data_as<const int32_t>(), rows == 1 ? q2k.size(0) : 1,  q2k.size(rows),
          q2k.size(rows + 1),           rows == 1 ? step(q2k, 0) : 0, step(q2k, rows)};
}

void check_q2k(Checker& check, const TensorView& q2k) {
  if (q2k.rank() != 2) {
    check.input("q2k", q2k, {DType::kInt32}, {"h_q", "rows", "n"});
    check.count("q2k", "h_q", q2k.size(0));
  } else {
    check.input("q2k", q2k, {DType::kInt32}, {"rows", "n"});
  }
  check.count("q2k", "rows", q2k.size(q2k.rank() - 2));
  check.count("q2k", "n", q2k.size(q2k.rank() - 1));
}

}  // namespace

void check(const ExpandBlockSelectionArgs& args) {
  Checker check("expand_block_selection", {});
  check_q2k(check, args.q2k);
  const Selection q2k = selection_of(args.q2k);
  if (args.factor < 1 || args.factor > kMaxCount / std::max<int64_t>(q2k.rows, 1)) {
    check.refuse("factor", fmt::format("1 to {}", kMaxCount / std::max<int64_t>(q2k.rows, 1)),
                 fmt::format("{}", args.factor));
  }
  if (args.q2k.rank() == 3) {
    check.output("out", args.out, {DType::kInt32}, {q2k.heads, q2k.rows * args.factor, q2k.width});
  } else {
    check.output("out", args.out, {DType::kInt32}, {q2k.rows * args.factor, q2k.width});
  }
  check.no_overlaps();
}

void expand_block_selection(const ExpandBlockSelectionArgs& args) {
  casefile::or_saved(args, [&] { check(args); });
  const Selection from = selection_of(args.q2k);
  const Selection to = selection_of(args.out);
  for (int64_t h = 0; h < to.heads; ++h) {
    for (int64_t r = 0; r < to.rows; ++r) {
      std::copy_n(from.row(h, r / args.factor), from.width, const_cast<int32_t*>(to.row(h, r)));
    }
  }
}

void check(const InvertBlockSelectionArgs& args) {
  Checker check("invert_block_selection", {});
  check_q2k(check, args.q2k);
  const Selection q2k = selection_of(args.q2k);
  if (args.num_kv_blocks < 0 || args.num_kv_blocks >= kMaxCount) {
    check.refuse("num_kv_blocks", fmt::format("0 to {}", kMaxCount - 1),
                 fmt::format("{}", args.num_kv_blocks));
  }
  if (args.q2k.numel() > kMaxCount) {
    check.refuse("q2k", fmt::format("of at most {} elements", kMaxCount),
                 fmt::format("{} elements", args.q2k.numel()));
  }
  if (args.q2k.rank() == 3) {
    check.output("row_ptr", args.row_ptr, {DType::kInt32}, {q2k.heads, args.num_kv_blocks + 1});
  } else {
    check.output("row_ptr", args.row_ptr, {DType::kInt32}, {args.num_kv_blocks + 1});
  }
  check.output("q_blocks", args.q_blocks, {DType::kInt32}, {args.q2k.numel()});
  check.no_overlaps();
}

void invert_block_selection(const InvertBlockSelectionArgs& args) {
  casefile::or_saved(args, [&] { check(args); });
  const Selection q2k = selection_of(args.q2k);
  const auto blocks = static_cast<int32_t>(args.num_kv_blocks);
  std::vector<int32_t> sorted(static_cast<size_t>(q2k.rows * q2k.width));
  std::vector<int32_t> counts(static_cast<size_t>(q2k.rows));
  std::vector<int32_t> row_ptr(static_cast<size_t>(blocks) + 1);
  int32_t before = 0;
  for (int64_t h = 0; h < q2k.heads; ++h) {
    for (int64_t r = 0; r < q2k.rows; ++r) {
      counts[static_cast<size_t>(r)] = visit::select_blocks(q2k.row(h, r), static_cast<int32_t>(q2k.width),
                                                            {0, blocks}, sorted.data() + r * q2k.width);
    }
    const int64_t found = visit::invert_selection(
        sorted.data(), counts.data(), static_cast<int32_t>(q2k.rows), q2k.width, blocks, row_ptr.data(),
        args.q_blocks.data_as<int32_t>() + before, static_cast<int32_t*>(nullptr));
    const bool per_head = args.row_ptr.rank() == 2;
    auto* out = args.row_ptr.data_as<int32_t>() + (per_head ? h * step(args.row_ptr, 0) : 0);
    for (int64_t b = 0; b <= blocks; ++b) out[b] = before + row_ptr[static_cast<size_t>(b)];
    before += static_cast<int32_t>(found);
  }
}

}  // namespace tilewise
