"""Attention fused with what surrounds it: RMS norm and RoPE of q before, RoPE and the FP8 cast behind.

Serving operators: none is differentiable, and a tensor that requires grad is refused while gradients are on.
Outputs may be the caller's own tensors, which are then returned themselves; the others are allocated, so that
out_fp8 and out_sf may each be given alone. Token ranges of one larger pair of buffers qualify as outputs:
calls for the prefill and the decode tokens of a step can fill one pair between them.
"""

from __future__ import annotations

from torch import Tensor

from tilewise._operator import Operator

_FUSED_PREFILL = Operator("fused_prefill")
_FUSED_DECODE = Operator("fused_decode")
_FUSED_DECODE_PARTIALS = Operator("fused_decode_partials")
_COMBINE_PARTIALS_FUSED = Operator("combine_partials_fused")


def fused_prefill(
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    token_positions: Tensor,
    cos_sin_cache: Tensor,
    softmax_scale: float,
    n_groups: int,
    q_norm_eps: float | None = None,
    topk_length: Tensor | None = None,
    attn_sink: Tensor | None = None,
    *,
    out_fp8: Tensor | None = None,
    out_sf: Tensor | None = None,
    max_logits: Tensor | None = None,
    lse: Tensor | None = None,
    out_bf16: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """sparse_prefill_fwd between the rotations, the norm and the cast (docs/operators.md, section 7).

    Args:
        q: [s_q, h_q, 512] bfloat16 in the order that permute_q_b_proj gives, contiguous within a token;
            h_q is a multiple of n_groups. Its last 64 channels are rotated by the token's position.
        kv: [s_kv, 1, 512] bfloat16, already rotated.
        indices: [s_q, 1, topk] int32, rows of kv; entries that name no row are skipped.
        token_positions: [s_q] int32, rows of cos_sin_cache; clamped.
        cos_sin_cache: [max_pos, 64] float32, 32 cosines and then 32 sines a row.
        softmax_scale: what q·k is multiplied by.
        n_groups: groups of heads in the output.
        q_norm_eps: the epsilon of q's RMS norm (no weight); None: no norm.
        topk_length: [s_q] int32, how many of the entries count; clamped to 0..topk.
        attn_sink: [h_q] float32, takes its share of the output and leaves lse and max_logits alone.
        out_fp8: [s_q, n_groups, h_q / n_groups * 512] float8_e4m3fn, contiguous, 32-byte aligned.
        out_sf: [s_q, n_groups, h_q / n_groups * 4] int32, four exponent bytes each, tokens side by side:
            strides (1, at least columns * column stride, at least s_q).
        max_logits, lse: [s_q, h_q] float32.
        out_bf16: [s_q, h_q, 512] bfloat16, written too where it is given: the output before the cast, in the
            plain order of heads and channels. It is not among the results.

    Returns:
        out_fp8, out_sf, max_logits (the largest scaled score) and lse (the natural logarithm of the sum of
        the exponentials). A query without keys: codes 0, exponent bytes 105, -inf and +inf.

    Raises:
        RuntimeError: an argument is not as above, or requires grad. Nothing has been written then.
    """
    args = (
        q,
        kv,
        indices,
        token_positions,
        cos_sin_cache,
        softmax_scale,
        n_groups,
        q_norm_eps,
        topk_length,
        attn_sink,
    )
    return _FUSED_PREFILL.call(args, (out_fp8, out_sf, max_logits, lse, out_bf16))


def fused_decode(
    q: Tensor,
    kv_cache: Tensor,
    indices: Tensor,
    token_positions: Tensor,
    cos_sin_cache: Tensor,
    softmax_scale: float,
    n_groups: int,
    q_norm_eps: float | None = None,
    record: str | None = None,
    topk_length: Tensor | None = None,
    extra_cache: Tensor | None = None,
    extra_indices: Tensor | None = None,
    extra_topk_length: Tensor | None = None,
    extra_record: str | None = None,
    attn_sink: Tensor | None = None,
    num_splits: int | None = None,
    *,
    out_fp8: Tensor | None = None,
    out_sf: Tensor | None = None,
    lse: Tensor | None = None,
    out_bf16: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """sparse_decode between the rotations, the norm and the cast (docs/operators.md, section 7).

    Args:
        q, token_positions, cos_sin_cache, softmax_scale, n_groups, q_norm_eps, attn_sink: as fused_prefill
            has them; s_q counts the tokens of all requests.
        kv_cache: [num_blocks, page, 1, bytes] of a record of docs/kv-formats.md that holds 512 channels.
        indices: [s_q, topk] int32, ``block * page + offset`` each; entries that name no token are skipped.
        record: the cache's record; None: the one that the width tells.
        topk_length: [s_q] int32, how many of the entries count; clamped to 0..topk.
        extra_cache, extra_indices, extra_topk_length, extra_record: the second cache, with a page size of its
            own, indices [s_q, extra_topk] and lengths [s_q].
        num_splits: parts that the keys are divided into; None: as many as are of use.
        out_fp8, out_sf, lse, out_bf16: as fused_prefill has them.

    Returns:
        out_fp8, out_sf and lse, as fused_prefill.

    Raises:
        RuntimeError: an argument is not as above, or requires grad. Nothing has been written then.
    """
    args = (
        q,
        kv_cache,
        indices,
        token_positions,
        cos_sin_cache,
        softmax_scale,
        n_groups,
        q_norm_eps,
        record,
        topk_length,
        extra_cache,
        extra_indices,
        extra_topk_length,
        extra_record,
        attn_sink,
        num_splits,
    )
    return _FUSED_DECODE.call(args, (out_fp8, out_sf, lse, out_bf16))


def fused_decode_partials(
    q: Tensor,
    kv_cache: Tensor,
    indices: Tensor,
    token_positions: Tensor,
    cos_sin_cache: Tensor,
    softmax_scale: float,
    n_groups: int,
    q_norm_eps: float | None = None,
    record: str | None = None,
    topk_length: Tensor | None = None,
    extra_cache: Tensor | None = None,
    extra_indices: Tensor | None = None,
    extra_topk_length: Tensor | None = None,
    extra_record: str | None = None,
    attn_sink: Tensor | None = None,
    num_splits: int = 1,
    *,
    o_accum: Tensor | None = None,
    lse_accum: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """fused_decode up to the merge: partial results over parts of the keys (docs/operators.md, section 7).

    combine_partials_fused with ``base2=True`` and the sink merges and casts them.

    Args:
        q, kv_cache, ..., extra_record: as fused_decode has them.
        attn_sink: [h_q] float32, judged and not applied: the merge does that.
        num_splits: n, the parts that the keys are divided into; which part gets which keys is left open.
        o_accum: [n, s_q, h_q, 512] float32, contiguous.
        lse_accum: [n, s_q, h_q] float32, contiguous.

    Returns:
        o_accum, each part normalised by its own sum and rotated back, in the plain order of heads and
        channels; lse_accum, logarithms to the base 2. An empty part: 0 and -inf.

    Raises:
        RuntimeError: an argument is not as above, or requires grad. Nothing has been written then.
    """
    args = (
        q,
        kv_cache,
        indices,
        token_positions,
        cos_sin_cache,
        softmax_scale,
        n_groups,
        q_norm_eps,
        record,
        topk_length,
        extra_cache,
        extra_indices,
        extra_topk_length,
        extra_record,
        attn_sink,
        num_splits,
    )
    return _FUSED_DECODE_PARTIALS.call(args, (o_accum, lse_accum))


def combine_partials_fused(
    out_partials: Tensor,
    lse_partials: Tensor,
    attn_sink: Tensor | None = None,
    base2: bool = False,
    n_groups: int = 1,
    *,
    out_fp8: Tensor | None = None,
    out_sf: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """combine_partials with the cast of the fused operators behind it (docs/operators.md, sections 7 and 8).

    Args:
        out_partials: [n, s_q, h_q, 512] float32, bfloat16 or float16, each normalised by its own sum.
        lse_partials: [n, s_q, h_q] float32. A part of -inf or +inf is empty and ignored.
        attn_sink: [h_q] float32, applied once to the merged output.
        base2: lse_partials are logarithms to the base 2, as fused_decode_partials gives them, else natural.
        n_groups: groups of heads in the output; a divisor of h_q.
        out_fp8, out_sf, lse: as fused_prefill has them.

    Returns:
        out_fp8, out_sf and lse, a natural logarithm whatever base2 says.

    Raises:
        RuntimeError: an argument is not as above, or requires grad. Nothing has been written then.
    """
    args = (out_partials, lse_partials, attn_sink, base2, n_groups)
    return _COMBINE_PARTIALS_FUSED.call(args, (out_fp8, out_sf, lse))
