"""The planted bugs: one change of one place each, and the tests that must see it.

`old` is found with any white space for its own, and must be there exactly once.
"""

from __future__ import annotations

from typing import NamedTuple

INVARIANTS = "tilewise_invariants_tests"
TRAINING = "tilewise_training_tests"


class Mutation(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    tests: str = "*"  # a filter of GoogleTest
    program: str = INVARIANTS


FORWARD = "src/cpu/forward"
ELEMENTWISE = "src/cpu/elementwise"
VARLEN = "src/cpu/varlen"

MUTATIONS = (
    # Masks, lists and lengths.
    Mutation(
        "causal mask removed",
        "src/visit/rules.h",
        "if (causal) limits = both(limits, causal_rule(pos));",
        "",
        "MoreQueries*:*Unread*dense*",
    ),
    Mutation(
        "window removed",
        "src/visit/rules.h",
        "KeyLimits limits = window_rule(pos, left, right);",
        "KeyLimits limits = window_rule(pos, kUnbounded, kUnbounded);",
        "*Unread*dense*",
    ),
    Mutation(
        "row limits ignored in masked tiles",
        f"{FORWARD}/kernel.cpp",
        "const bool limited = loaded.form == visit::Form::kRow;",
        "const bool limited = false;",
        "*dense*:Dense*:MoreQ*",
    ),
    Mutation(
        "index check off by one above",
        f"{FORWARD}/source.cpp",
        "if (slot < 0 || slot >= shape.num_blocks * shape.page)",
        "if (slot < 0 || slot > shape.num_blocks * shape.page)",
        "*Indices*",
    ),
    Mutation(
        "index check off by one below",
        f"{FORWARD}/source.cpp",
        "if (slot < 0 || slot >= shape.num_blocks * shape.page)",
        "if (slot < -1 || slot >= shape.num_blocks * shape.page)",
        "*Indices*",
    ),
    Mutation(
        "block check off by one",
        f"{FORWARD}/source.cpp",
        "if (block < 0 || block >= shape.num_blocks) continue;",
        "if (block < 0 || block > shape.num_blocks) continue;",
        "*Indices*",
    ),
    Mutation(
        "slot check of append_kv off by one",
        "src/cpu/kv_move.cpp",
        "if (slot < 0 || slot >= shape.num_blocks * shape.page ||",
        "if (slot < 0 || slot > shape.num_blocks * shape.page ||",
        "*Indices*:*StrayAccess*append*",
    ),
    Mutation(
        "lengths ignored",
        "src/ops/forward.h",
        "if (cache.length == nullptr) return limit;",
        "return limit;",
        "*Unread*:*Lists*",
    ),
    Mutation(
        "negative lengths not clamped",
        "src/ops/forward.h",
        "return visit::smaller(visit::larger(length, 0), limit);",
        "return visit::smaller(length, limit);",
        program="tilewise_oracle_tests",
    ),
    Mutation(
        "extra cache ignored",
        f"{FORWARD}/cut.h",
        "length_ = main_ + clamped_length(shape.extra, problem.extra, shape.extra.width, tile.request, "
        "tile.first_token);",
        "length_ = main_;",
        "*Lists*:*Fused*",
    ),
    # Softmax.
    Mutation(
        "sink dropped",
        f"{FORWARD}/query.cpp",
        "if (shape.has_sink && factor != 0.0f) factor *=",
        "if (false) factor *=",
        "*Lists*",
    ),
    Mutation(
        "lonely rows multiplied by the sink's factor",
        f"{FORWARD}/query.cpp",
        "if (shape.has_sink && factor != 0.0f) factor *=",
        "if (shape.has_sink) factor *=",
    ),
    Mutation(
        "sink of merges dropped",
        "src/cpu/combine.cpp",
        "row.factor = shape.has_sink ?",
        "row.factor = false ?",
        "*Merged*",
    ),
    Mutation(
        "sink_bias joins the output alone",
        "src/softmax/state.h",
        "return {joined.max + std::log(joined.sum), state.max, weight / joined.sum};",
        "return {finish(state).lse, state.max, weight / joined.sum};",
        "*Lists*",
    ),
    Mutation(
        "output not rescaled when the maximum grows",
        f"{ELEMENTWISE}/softmax.cpp",
        "hn::Store(rescale, d, state.rescale + row);",
        "hn::Store(hn::Set(d, 1.0f), d, state.rescale + row);",
    ),
    Mutation(
        "sum not rescaled when the maximum grows",
        f"{ELEMENTWISE}/softmax.cpp",
        "hn::MulAdd(hn::Load(d, state.sum + row), rescale, sum)",
        "hn::Add(hn::Load(d, state.sum + row), sum)",
    ),
    Mutation(
        "pieces merged without their weights",
        f"{FORWARD}/kernel.cpp",
        "merged.weight_a, part.o + r * row_step_, merged.weight_b,",
        "1.0f, part.o + r * row_step_, 1.0f,",
    ),
    Mutation(
        "NaN scores lost in the maximum",
        f"{ELEMENTWISE}/softmax.cpp",
        "max = hn::IfThenElse(hn::IsNaN(nan), nan, max);",
        "",
        "*Selected*:*Infinite*",
    ),
    Mutation(
        "lonely rows by the rule of -inf",
        "src/softmax/state.h",
        "if (is_lonely(state)) return {kInfinity, -kInfinity, 0.0f};",
        "if (is_lonely(state)) return {-kInfinity, -kInfinity, 0.0f};",
        "*Empty*",
    ),
    Mutation(
        "lonely rows divided by their sum",
        "src/softmax/state.h",
        "if (is_lonely(state)) return {kInfinity, -kInfinity, 0.0f};",
        "",
        "*Empty*",
    ),
    Mutation(
        "lonely merges not seen",
        "src/softmax/state.h",
        "if (is_lonely(state)) return kInfinity;",
        "",
        "*Empty*",
    ),
    Mutation(
        "empty partials merged",
        "src/softmax/state.h",
        "TW_HD constexpr bool is_empty_partial(float lse) { return lse == kInfinity || lse == -kInfinity; }",
        "TW_HD constexpr bool is_empty_partial(float lse) { return lse == kInfinity; }",
        "*Unread*combine*:*Empty*",
    ),
    Mutation(
        "partial lse in the wrong base",
        f"{FORWARD}/query.cpp",
        "softmax::lse_to_base2(result.lse)",
        "result.lse",
        "*partials*:Split*",
    ),
    Mutation(
        "merged lse left in base 2",
        "src/softmax/state.h",
        "state.max * (base == LogBase::kTwo ? kLn2Double : 1.0) + std::log(state.sum)",
        "state.max * (base == LogBase::kTwo ? 1.0 : 1.0) + std::log(state.sum)",
        "*Merged*:Split*",
    ),
    # Records.
    Mutation(
        "nibbles swapped when read",
        f"{ELEMENTWISE}/decode.cpp",
        "const auto even = hn::And(bytes, hn::Set(d, uint8_t{15})); "
        "const auto odd = hn::ShiftRight<4>(bytes);",
        "const auto odd = hn::And(bytes, hn::Set(d, uint8_t{15})); "
        "const auto even = hn::ShiftRight<4>(bytes);",
        "Golden*",
    ),
    Mutation(
        "nibbles swapped when written",
        f"{ELEMENTWISE}/encode.cpp",
        "static_cast<uint8_t>(codes[j] | codes[j + 1] << 4)",
        "static_cast<uint8_t>(codes[j + 1] | codes[j] << 4)",
        "*SupportsMoves*",
    ),
    Mutation(
        "scales in linear order",
        "src/formats/record.h",
        "scales.order == ScaleOrder::kByQuarters ? 8 * (s & 3) + (s >> 2) : s;",
        "s;",
        "Golden*",
    ),
    Mutation(
        "scale byte 0 means 0",
        "src/core/numeric.h",
        "if (code == 0) return 0x1p-127f;",
        "if (code == 0) return 0.0f;",
        program="tilewise_format_tests",
    ),
    Mutation(
        "padding bytes not written",
        f"{ELEMENTWISE}/encode.cpp",
        "if (scales.padding > 0) {",
        "if (false) {",
        "*SupportsMoves*",
    ),
    Mutation(
        "padding byte read as a scale",
        f"{ELEMENTWISE}/decode.cpp",
        "const uint8_t* place = plane + formats::scale_offset(scales, group);",
        "const uint8_t* place = plane + formats::scale_offset(scales, group) + scales.padding;",
        "*Unread*:Golden*",
    ),
    # Addresses.
    Mutation(
        "32-bit offset of a block",
        f"{FORWARD}/source.cpp",
        "cache.base + slot / shape.page * cache.block_stride;",
        "cache.base + static_cast<int32_t>(slot / shape.page * cache.block_stride);",
        "*Width*",
    ),
    Mutation(
        "32-bit offset of a block of dense_decode",
        f"{FORWARD}/source.cpp",
        "cache.base + block * cache.block_stride +",
        "cache.base + static_cast<uint32_t>(block * cache.block_stride) +",
        "*Width*",
    ),
    Mutation(
        "32-bit offset of a plane",
        "src/formats/record.h",
        "return page_base + before * page_size +",
        "return page_base + static_cast<int32_t>(before * page_size) +",
        "*WidePages*",
    ),
    Mutation(
        "32-bit offset of a block that is written",
        "src/cpu/kv_move.cpp",
        "isa_.encode->record(spec, x, problem.pages + slot / shape.page * problem.block_stride,",
        "isa_.encode->record(spec, x, problem.pages + static_cast<uint32_t>(slot / shape.page * "
        "problem.block_stride),",
        "*Width*",
    ),
    Mutation(
        "32-bit offset of a query",
        f"{FORWARD}/query.cpp",
        "const int64_t token_at = tile.request * problem.q_stride_b + token * problem.q_stride_s;",
        "const auto token_at = static_cast<int32_t>(tile.request * problem.q_stride_b + token * "
        "problem.q_stride_s);",
        "*Width*",
    ),
    Mutation(
        "32-bit offset of an output row",
        "src/ops/forward.h",
        "return data + b * stride_b + s * stride_s + h * stride_h;",
        "return data + static_cast<int32_t>(b * stride_b + s * stride_s + h * stride_h);",
        "*Width*",
    ),
    Mutation(
        "16-bit head index",
        "src/visit/query_tile.h",
        "return kv_head * group + static_cast<int32_t>(remainder32(row_begin + row, group));",
        "return kv_head * group + static_cast<uint16_t>(remainder32(row_begin + row, group));",
        "*Large*Heads*",
    ),
    Mutation(
        "reads one vector past a row",
        f"{ELEMENTWISE}/decode.cpp",
        "std::memcpy(out + i * ld, from, static_cast<size_t>(d) * sizeof(BF16));",
        "std::memcpy(out + i * ld, from, static_cast<size_t>(d + 8) * sizeof(BF16));",
        "*StrayAccess*",
    ),
    Mutation(
        "writes one vector past a row",
        f"{ELEMENTWISE}/rows.cpp",
        "void* to) { if (type == DType::kFP32) { std::memcpy(to, from, static_cast<size_t>(n) * "
        "sizeof(float)); } else if (type == DType::kBF16)",
        "void* to) { if (type == DType::kFP32) { std::memcpy(to, from, static_cast<size_t>(n) * "
        "sizeof(float)); } else if (n += 8; type == DType::kBF16)",
        "*StrayAccess*",
    ),
    # What a call finds and leaves in memory.
    Mutation(
        "accumulators not cleared",
        f"{FORWARD}/kernel.cpp",
        "if (step.rescale == nullptr) std::fill_n(to.o, m * row_step_, 0.0f);",
        "",
        "*EmptyPieces*",
    ),
    Mutation(
        "keys before the window decoded",
        f"{FORWARD}/source.cpp",
        "for (int32_t key = std::max(keys.begin, needed_.begin); key < keys.end; ++key)",
        "for (int32_t key = keys.begin; key < keys.end; ++key)",
        "*Unread*",
    ),
    Mutation(
        "prefix of the indexer kept from the last call",
        f"{FORWARD}/kernel.cpp",
        "if (p == 0 && cut.prefix_pieces() == 0) prefix[r] = softmax::RowState{};",
        "",
        "*Unread*:*Empty*",
    ),
    # Fused operators.
    Mutation(
        "exponent bytes in big-endian order",
        f"{FORWARD}/query.cpp",
        "to.exponents[place / 4 * to.sf_column_stride + place % 4] = exponents[j];",
        "to.exponents[place / 4 * to.sf_column_stride + 3 - place % 4] = exponents[j];",
        "Fused*:*Fused*:*Lists*",
    ),
    Mutation(
        "output not turned back",
        f"{FORWARD}/query.cpp",
        "isa.rows->multiply(o, problem.shape.d_v, factor); if (problem.shape.fused) isa.rows->rotate(",
        "isa.rows->multiply(o, problem.shape.d_v, factor); if (false) isa.rows->rotate(",
        "*Fused*",
    ),
    Mutation(
        "lonely rows turned to negative zeros",
        f"{FORWARD}/query.cpp",
        "std::fill_n(o, problem.shape.d_v, 0.0f); return;",
        "std::fill_n(o, problem.shape.d_v, 0.0f);",
        "*Empty*",
    ),
    Mutation(
        "norm left out of the scale",
        f"{FORWARD}/query.cpp",
        "scale[r] *= 1.0f / std::sqrt(mean + shape.q_norm_eps);",
        "scale[r] *= 1.0f + 0.0f * mean;",
        "*Fused*",
    ),
    # Repeatability.
    Mutation(
        "tiles counted from what the rows need",
        f"{FORWARD}/source.cpp",
        "visit::visit_keys(rule_, queries, kTileKeys, visit::TileOrigin::kSequence);",
        "visit::visit_keys(rule_, queries, kTileKeys, visit::TileOrigin::kFirstNeeded);",
        "*dense*:Dense*",
    ),
    Mutation(
        "pieces cut by the number of tokens",
        f"{FORWARD}/cut.h",
        "tail_ = visit::segments_of(static_cast<int32_t>(length_ - prefix_), kPieceRule);",
        "tail_ = visit::segments_of(static_cast<int32_t>(length_ - prefix_), {.tile = kTileKeys, "
        ".min_keys = 128 * static_cast<int32_t>(shape.s_q), .max_segments = 32});",
        "*BatchInvariance*",
    ),
    Mutation(
        "scratch of threads shared",
        f"{FORWARD}/kernel.cpp",
        "plan_.scratch + static_cast<size_t>(thread) * plan_.scratch_bytes",
        "plan_.scratch + static_cast<size_t>(thread) * 0",
        "*Repeatability*:*Large*",
    ),
    Mutation(
        "scratch of callers shared",
        f"{FORWARD}/kernel.cpp",
        "auto* memory = granted<std::byte>(workspace_, plan_.scratch + static_cast<size_t>(thread) * "
        "plan_.scratch_bytes);",
        "(void)thread; alignas(64) static std::byte memory[size_t{1} << 26];",
        program="tilewise_concurrency_tests",
    ),
    # Training.
    Mutation(
        "masked tiles of the backward taken for full ones",
        f"{VARLEN}/backward.cpp",
        "if (visitor.form == visit::Form::kRow) {",
        "if (visitor.form == visit::Form::kRow && visitor.rank < 0) {",
        program=TRAINING,
    ),
    Mutation(
        "the first key tile's dQ added to what the workspace held",
        f"{VARLEN}/backward.cpp",
        "if (visitor.rank > 0) { isa_.rows->merge",
        "if (true) { isa_.rows->merge",
        program=TRAINING,
    ),
    Mutation(
        "an odd last row left out of sums by pairs (AVX-512 BF16)",
        "src/cpu/tile/bf16_products-inl.h",
        "x.pairs = (terms[0].rows.count + 1) / 2;",
        "x.pairs = terms[0].rows.count / 2;",
        program=TRAINING,
    ),
    Mutation(
        "the sink's gradient has the other sign",
        f"{VARLEN}/backward.cpp",
        "shared_.d_sink[h] -= sink_share",
        "shared_.d_sink[h] += sink_share",
        program=TRAINING,
    ),
    Mutation(
        "gradients of rows after the last sequence left as they were",
        f"{VARLEN}/backward.cpp",
        "clear_rows(q_end, shape_.total_q, k_end, shape_.total_k);",
        "",
        program=TRAINING,
    ),
    Mutation(
        "delta left out of dS",
        f"{ELEMENTWISE}/gradient.cpp",
        "hn::Sub(hn::Load(d, dp + k * ld), delta)",
        "hn::Add(hn::Load(d, dp + k * ld), hn::Sub(delta, delta))",
        program=TRAINING,
    ),
    Mutation(
        "sink_bias left out of the forward",
        f"{VARLEN}/forward.cpp",
        "result = softmax::finish_with_sink_bias(state, sink);",
        "(void)sink;",
        program=TRAINING,
    ),
    Mutation(
        "every head takes the first one's selection",
        f"{VARLEN}/sequences.h",
        "head * problem.q2k_stride_h",
        "0 * head * problem.q2k_stride_h",
        program=TRAINING,
    ),
    Mutation(
        "max_seqlen_q ignored",
        f"{VARLEN}/sequences.h",
        "clamped(q_last - q_first, shape.max_seqlen_q)",
        "clamped(q_last - q_first, shape.total_q)",
        program=TRAINING,
    ),
    Mutation(
        "keys between those that somebody sees are read",
        f"{VARLEN}/tiles.h",
        "if (needed.has(i)) {",
        "if (needed.has(i) || needed.count() > 0) {",
        program=TRAINING,
    ),
)
