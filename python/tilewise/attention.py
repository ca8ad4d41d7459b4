"""Attention over caches and token lists, and the merge of partial results.

Serving operators: none but sparse_prefill_fwd is differentiable, and a tensor that requires grad is refused
while gradients are on. Outputs may be the caller's own tensors, which are then returned themselves; the
others are allocated.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tilewise import _autograd  # noqa: F401  (registers the gradients)
from tilewise._operator import Operator

_DENSE_DECODE = Operator("dense_decode")
_SPARSE_DECODE = Operator("sparse_decode")
_DENSE_DECODE_PLAN = Operator("dense_decode_plan")
_SPARSE_DECODE_PLAN = Operator("sparse_decode_plan")
_SPARSE_PREFILL_FWD = Operator("sparse_prefill_fwd", ("q", "kv", "sink_bias"), ("attn_sink",))
_COMBINE_PARTIALS = Operator("combine_partials")


def dense_decode(
    q: Tensor,
    k_cache: Tensor,
    block_table: Tensor,
    cache_seqlens: Tensor,
    softmax_scale: float,
    d_v: int = 512,
    causal: bool = False,
    window: Sequence[int] = (-1, -1),
    attn_sink: Tensor | None = None,
    descale_q: Tensor | None = None,
    descale_k: Tensor | None = None,
    batch_invariant: bool = False,
    plan: Tensor | None = None,
    *,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of a few queries a request to all keys of its paged cache (docs/operators.md, section 1).

    Args:
        q: [b, s_q, h_q, d_qk], bfloat16, float16 or float8_e4m3fn; d_qk 576 or 512.
        k_cache: [num_blocks, page, h_kv, d_qk] in q's type; h_kv divides h_q. V is its first d_v columns.
        block_table: [b, max_blocks] int32, the blocks of each request. Keys of a block that does not exist
            are left out.
        cache_seqlens: [b] int32, keys of each request; clamped to what the table holds.
        softmax_scale: what q·k is multiplied by.
        d_v: columns of V; 512.
        causal: query i sees the keys up to ``length - s_q + i``.
        window: (left, right), the keys around the query's own place that it sees; -1: no limit.
        attn_sink: [h_q] float32, takes its share of the output and leaves lse alone.
        descale_q, descale_k: [1] float32, given for float8_e4m3fn and only then: what the values of q and
            k_cache are to be multiplied by.
        batch_invariant: on a GPU, a row's bits then depend on that row alone; on the CPU they always do.
        plan: what `dense_decode_plan` made for these shapes, on a GPU. Not with batch_invariant.
        out: [b, s_q, h_q, d_v], float16 for float16, else bfloat16.
        lse: [b, h_q, s_q] float32.

    Returns:
        out and lse, the natural logarithm of the sum of the exponentials. A query without keys: 0 and +inf.

    Raises:
        RuntimeError: an argument is not as above, or requires grad. Nothing has been written then.
    """
    args = (
        q,
        k_cache,
        block_table,
        cache_seqlens,
        softmax_scale,
        d_v,
        causal,
        window,
        attn_sink,
        descale_q,
        descale_k,
        batch_invariant,
        plan,
    )
    return _DENSE_DECODE.call(args, (out, lse))


def sparse_decode(
    q: Tensor,
    kv_cache: Tensor,
    indices: Tensor,
    softmax_scale: float,
    record: str | None = None,
    topk_length: Tensor | None = None,
    extra_cache: Tensor | None = None,
    extra_indices: Tensor | None = None,
    extra_topk_length: Tensor | None = None,
    extra_record: str | None = None,
    attn_sink: Tensor | None = None,
    batch_invariant: bool = False,
    plan: Tensor | None = None,
    *,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention to listed tokens of one or two paged, quantised caches (docs/operators.md, section 2).

    One softmax goes over the tokens of both caches.

    Args:
        q: [b, s_q, h_q, d_qk] bfloat16; d_qk is the record's.
        kv_cache: [num_blocks, page, 1, bytes] of a record of docs/kv-formats.md (uint8, int8 or
            float8_e4m3fn; bfloat16 for the record "bf16").
        indices: [b, s_q, topk] int32, ``block * page + offset`` each. Entries that name no token are skipped;
            a token listed twice counts twice.
        softmax_scale: what q·k is multiplied by.
        record: the cache's record; None: the one that the width tells.
        topk_length: [b] int32, how many of the entries count; clamped to 0..topk.
        extra_cache, extra_indices, extra_topk_length, extra_record: the second cache, with a page size of its
            own and indices [b, s_q, extra_topk]; which records pair is in docs/kv-formats.md.
        attn_sink: [h_q] float32, takes its share of the output and leaves lse alone.
        batch_invariant: on a GPU, a row's bits then depend on that row alone; on the CPU they always do.
        plan: what `sparse_decode_plan` made for these shapes, on a GPU. Not with batch_invariant.
        out: [b, s_q, h_q, 512] bfloat16.
        lse: [b, h_q, s_q] float32.

    Returns:
        out and lse, the natural logarithm of the sum of the exponentials. A query without keys: 0 and +inf.

    Raises:
        RuntimeError: an argument is not as above, or requires grad. Nothing has been written then.
    """
    args = (
        q,
        kv_cache,
        indices,
        softmax_scale,
        record,
        topk_length,
        extra_cache,
        extra_indices,
        extra_topk_length,
        extra_record,
        attn_sink,
        batch_invariant,
        plan,
    )
    return _SPARSE_DECODE.call(args, (out, lse))


def dense_decode_plan(
    q: Tensor,
    k_cache: Tensor,
    block_table: Tensor,
    cache_seqlens: Tensor,
    causal: bool = False,
    window: Sequence[int] = (-1, -1),
    *,
    plan: Tensor | None = None,
) -> Tensor:
    """How a GPU cuts the keys of a batch into evenly loaded pieces, for calls of `dense_decode`.

    Made on the device from the lengths that lie there, once for all layers of a step. A call with a plan is
    right whatever its lengths are, and quick where they are about those of the plan. Without a plan every
    request is cut as if it were as long as its table: that is slower where lengths differ much.

    Args:
        q, k_cache, block_table, cache_seqlens, causal, window: as of `dense_decode`, on a GPU; of q and
            k_cache the shapes alone count.
        plan: int32, contiguous, as many elements as a new plan has.

    Returns:
        plan, for calls in which q, k_cache and block_table have these shapes and types, on this device.

    Raises:
        RuntimeError: an argument is not as above, or requires grad. Nothing has been written then.
    """
    args = (q, k_cache, block_table, cache_seqlens, causal, window)
    result = _DENSE_DECODE_PLAN.call(args, (plan,))
    return result if plan is None else plan


def sparse_decode_plan(
    q: Tensor,
    kv_cache: Tensor,
    indices: Tensor,
    record: str | None = None,
    topk_length: Tensor | None = None,
    extra_cache: Tensor | None = None,
    extra_indices: Tensor | None = None,
    extra_topk_length: Tensor | None = None,
    extra_record: str | None = None,
    *,
    plan: Tensor | None = None,
) -> Tensor:
    """How a GPU cuts the token lists of a batch into evenly loaded pieces, for calls of `sparse_decode`.

    As `dense_decode_plan`, from the lengths of the lists.

    Args:
        q, kv_cache, indices, record, topk_length, extra_cache, extra_indices, extra_topk_length,
            extra_record: as of `sparse_decode`, on a GPU; but for the lengths the shapes alone count.
        plan: int32, contiguous, as many elements as a new plan has.

    Returns:
        plan, for calls in which the other arguments have these shapes and types, on this device.

    Raises:
        RuntimeError: an argument is not as above, or requires grad. Nothing has been written then.
    """
    args = (
        q,
        kv_cache,
        indices,
        record,
        topk_length,
        extra_cache,
        extra_indices,
        extra_topk_length,
        extra_record,
    )
    result = _SPARSE_DECODE_PLAN.call(args, (plan,))
    return result if plan is None else plan


def sparse_prefill_fwd(
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    softmax_scale: float,
    d_v: int = 512,
    topk_length: Tensor | None = None,
    attn_sink: Tensor | None = None,
    sink_bias: Tensor | None = None,
    indexer_topk: int = 0,
    *,
    out: Tensor | None = None,
    max_logits: Tensor | None = None,
    lse: Tensor | None = None,
    lse_indexer: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Attention of many queries to listed rows of one bfloat16 tensor (docs/operators.md, section 3).

    Differentiable in q, kv and sink_bias, without attn_sink: autograd calls sparse_prefill_bwd.

    Args:
        q: [s_q, h_q, d_qk] bfloat16; d_qk 576 or 512.
        kv: [s_kv, 1, d_qk] bfloat16. V is its first d_v columns.
        indices: [s_q, 1, topk] int32, rows of kv. Entries that name no row are skipped; a row listed twice
            counts twice.
        softmax_scale: what q·k is multiplied by.
        d_v: columns of V; 512.
        topk_length: [s_q] int32, how many of the entries count; clamped to 0..topk.
        attn_sink: [h_q] float32, takes its share of the output and leaves lse alone.
        sink_bias: [h_q] of any float type, a key without a value, in lse too; not with attn_sink.
        indexer_topk: how many leading entries lse_indexer covers, at most topk; 0: no lse_indexer.
        out: [s_q, h_q, d_v] bfloat16.
        max_logits, lse: [s_q, h_q] float32.
        lse_indexer: [s_q, h_q] float32, with an indexer_topk above 0 alone.

    Returns:
        out, max_logits (the largest scaled score) and lse (the natural logarithm of the sum of the
        exponentials), with an indexer_topk also lse_indexer (the same over the leading entries, without
        sinks). A query without keys: 0, -inf and +inf (lse is sink_bias where that is given).

    Raises:
        RuntimeError: an argument is not as above, requires grad without having a gradient, or is attn_sink or
            an output where gradients are wanted. Nothing has been written then.
    """
    needed = (q, kv, indices, softmax_scale)
    options = (d_v, topk_length, attn_sink, sink_bias)
    outputs = (out, max_logits, lse)
    if not (isinstance(indexer_topk, int) and indexer_topk == 0 and lse_indexer is None):
        return _SPARSE_PREFILL_FWD.call((*needed, *options, indexer_topk), (*outputs, lse_indexer))
    # A default takes torch as long as any other argument.
    if topk_length is None and attn_sink is None and sink_bias is None and d_v == 512:
        return _SPARSE_PREFILL_FWD.call(needed, outputs)[:3]
    return _SPARSE_PREFILL_FWD.call(needed + options, outputs)[:3]


def combine_partials(
    out_partials: Tensor,
    lse_partials: Tensor,
    attn_sink: Tensor | None = None,
    base2: bool = False,
    *,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Merges attention results over parts of the keys, from splits or ranks (docs/operators.md, section 8).

    Args:
        out_partials: [n, s_q, h_q, d_v] float32, bfloat16 or float16, each normalised by its own sum.
        lse_partials: [n, s_q, h_q] float32. A part of -inf or +inf is empty and ignored.
        attn_sink: [h_q] float32, applied once to the merged output.
        base2: lse_partials are logarithms to the base 2, else natural ones.
        out: [s_q, h_q, d_v], by default in the type of out_partials.
        lse: [s_q, h_q] float32.

    Returns:
        out and lse, a natural logarithm whatever base2 says. All parts empty: 0 and +inf.

    Raises:
        RuntimeError: an argument is not as above, or requires grad. Nothing has been written then.
    """
    return _COMBINE_PARTIALS.call((out_partials, lse_partials, attn_sink, base2), (out, lse))
