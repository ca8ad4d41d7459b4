"""Attention of whole sequences to themselves, with gradients, and the selections of its block-sparse form;
the gradients of attention to listed tokens.

The forward operators are differentiable: autograd calls the backward ones, under torch.compile too. lse has
no gradient, and gradients have none. Outputs may be the caller's own tensors, which are then returned
themselves; where gradients are wanted they are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tilewise import _autograd  # noqa: F401  (registers the gradients)
from tilewise._operator import Operator

_DIFFERENTIABLE = ("q", "k", "v", "sink_bias")
_DENSE_FWD = Operator("dense_prefill_fwd", _DIFFERENTIABLE)
_DENSE_BWD = Operator("dense_prefill_bwd")
_BLOCK_SPARSE_FWD = Operator("block_sparse_prefill_fwd", _DIFFERENTIABLE)
_BLOCK_SPARSE_BWD = Operator("block_sparse_prefill_bwd")
_SPARSE_BWD = Operator("sparse_prefill_bwd")
_EXPAND = Operator("expand_block_selection")
_INVERT = Operator("invert_block_selection")


def dense_prefill_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool = False,
    window: Sequence[int] = (-1, -1),
    sink_bias: Tensor | None = None,
    *,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of sequences laid end to end, each to its own keys (docs/operators.md, section 5).

    Differentiable in q, k, v and sink_bias.

    Args:
        q: [total_q, h_q, d_qk] bfloat16 or float16; d_qk/d_v 192/128, 128/128 or 64/64.
        k: [total_k, h_kv, d_qk] in q's type; h_kv divides h_q, query head i uses KV head i / (h_q / h_kv).
        v: [total_k, h_kv, d_v] in q's type.
        cu_seqlens_q, cu_seqlens_k: [b + 1] int32, the first row of each sequence and the end of the last one;
            clamped to the rows there are, a decrease makes an empty sequence.
        max_seqlen_q, max_seqlen_k: upper bounds of a sequence's rows; longer ones are cut there.
        softmax_scale: what q·k is multiplied by, usually ``d_qk ** -0.5``.
        causal: query i of s_q sees the keys up to ``s_k - s_q + i`` of its sequence's s_k.
        window: (left, right), the keys around the query's own place that it sees; -1: no limit. A key must
            pass causal and window both.
        sink_bias: [h_q] float32, bfloat16 or float16, the score of a key without a value, in lse too.
        out: [total_q, h_q, d_v] in q's type.
        lse: [total_q, h_q] float32.

    Returns:
        out and lse, the natural logarithm of the sum of the exponentials; lse is not differentiable. A query
        without keys: 0 and +inf (0 and sink_bias where that is given). Rows outside all sequences hold
        anything.

    Raises:
        RuntimeError: an argument is not as above, requires grad without having a gradient, or is an output
            where gradients are wanted. Nothing has been written then.
    """
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale)
    return _DENSE_FWD.call((q, k, v, *lengths, causal, window, sink_bias), (out, lse))


def dense_prefill_bwd(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool = False,
    window: Sequence[int] = (-1, -1),
    sink_bias: Tensor | None = None,
    deterministic: bool = True,
    *,
    dq: Tensor | None = None,
    dk: Tensor | None = None,
    dv: Tensor | None = None,
    d_sink: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The gradients of dense_prefill_fwd (docs/operators.md, section 5).

    Args:
        d_out: [total_q, h_q, d_v] in q's type, the gradient of out.
        out, lse: what dense_prefill_fwd returned. lse is believed: a key's weight is exp(score - lse).
        deterministic: False allows a kernel to add in any order; CPU kernels never do.
        dq, dk, dv: as q, k and v.
        d_sink: [h_q] in the type of sink_bias; with a sink_bias alone. Of calls that have a part of the keys
            each, with the out and lse of all, every one gives its keys' part.
        The others are those of dense_prefill_fwd.

    Returns:
        dq, dk, dv, and d_sink where sink_bias is given. Gradients of rows outside all sequences are 0.

    Raises:
        RuntimeError: an argument is not as above, or requires grad. Nothing has been written then.
    """
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale)
    args = (d_out, q, k, v, out, lse, *lengths, causal, window, sink_bias, deterministic)
    return _gradients(_DENSE_BWD, args, sink_bias, (dq, dk, dv, d_sink))


def _gradients(
    operator: Operator,
    args: tuple[object, ...],
    sink_bias: Tensor | None,
    given: tuple[Tensor | None, ...],
) -> tuple[Tensor, ...]:
    """The call of a backward operator, with d_sink as the last output."""
    results = operator.call(args, given)
    return results if sink_bias is not None else results[:-1]


def block_sparse_prefill_fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q2k: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    q_block: int = 128,
    kv_block: int = 128,
    causal: bool = True,
    window: Sequence[int] = (-1, -1),
    sink_bias: Tensor | None = None,
    *,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """dense_prefill_fwd in which each block of queries attends to the key blocks that it selects.

    docs/operators.md, section 6. Differentiable in q, k, v and sink_bias.

    Args:
        q, k, v: as in dense_prefill_fwd; d_qk/d_v is 192/128 or 128/128.
        q2k: [rows, n] int32, or [h_q, rows, n] for a selection of each head: the key blocks of each query
            block, counted inside the sequence; the rows of the sequences one after another. Negative entries
            are pads, duplicates count once, blocks that are not there or that the mask hides contribute
            nothing. None: every block.
        q_block: queries of a block, a multiple of 64.
        kv_block: keys of a block, 128 or 64.
        causal, window: as in dense_prefill_fwd; a key must pass the selection too.
        The others are those of dense_prefill_fwd.

    Returns:
        out and lse, as dense_prefill_fwd.

    Raises:
        RuntimeError: an argument is not as above, requires grad without having a gradient, or is an output
            where gradients are wanted. Nothing has been written then.
    """
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale)
    args = (q, k, v, q2k, *lengths, q_block, kv_block, causal, window, sink_bias)
    return _BLOCK_SPARSE_FWD.call(args, (out, lse))


def block_sparse_prefill_bwd(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    q2k: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float,
    q_block: int = 128,
    kv_block: int = 128,
    causal: bool = True,
    window: Sequence[int] = (-1, -1),
    sink_bias: Tensor | None = None,
    deterministic: bool = True,
    *,
    dq: Tensor | None = None,
    dk: Tensor | None = None,
    dv: Tensor | None = None,
    d_sink: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The gradients of block_sparse_prefill_fwd (docs/operators.md, section 6).

    Args:
        d_out, out, lse, deterministic, dq, dk, dv, d_sink: as in dense_prefill_bwd.
        The others are those of block_sparse_prefill_fwd.

    Returns:
        dq, dk, dv, and d_sink where sink_bias is given. Gradients of rows outside all sequences are 0.

    Raises:
        RuntimeError: an argument is not as above, or requires grad. Nothing has been written then.
    """
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale)
    options = (q_block, kv_block, causal, window, sink_bias, deterministic)
    args = (d_out, q, k, v, out, lse, q2k, *lengths, *options)
    return _gradients(_BLOCK_SPARSE_BWD, args, sink_bias, (dq, dk, dv, d_sink))


def sparse_prefill_bwd(
    d_out: Tensor,
    q: Tensor,
    kv: Tensor,
    out: Tensor,
    lse: Tensor,
    indices: Tensor,
    softmax_scale: float,
    d_v: int = 512,
    topk_length: Tensor | None = None,
    sink_bias: Tensor | None = None,
    kl_target: bool = False,
    deterministic: bool = True,
    *,
    dq: Tensor | None = None,
    dkv: Tensor | None = None,
    d_sink: Tensor | None = None,
    kl_target_out: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The gradients of sparse_prefill_fwd (docs/operators.md, section 4).

    Args:
        d_out: [s_q, h_q, d_v] bfloat16, the gradient of out.
        q, kv, indices, softmax_scale, d_v, topk_length, sink_bias: as in sparse_prefill_fwd.
        out, lse: what it returned. lse is believed: an entry's weight is exp(score - lse).
        kl_target: also return the weights that the entries have, summed over the heads.
        deterministic: False allows a kernel to add in any order; CPU kernels never do.
        dq, dkv: as q and kv.
        d_sink: [h_q] in the type of sink_bias; with a sink_bias alone. Of calls that have a part of the keys
            each, with the out and lse of all, every one gives its keys' part.
        kl_target_out: [s_q, topk] float32; with kl_target alone.

    Returns:
        dq, dkv (the gradient of V is added into its first d_v columns), then d_sink where sink_bias is given,
        then kl_target where that is True. Rows that no entry names have a gradient of 0, entries that name no
        row a kl_target of 0.

    Raises:
        RuntimeError: an argument is not as above, or requires grad. Nothing has been written then.
    """
    options = (softmax_scale, d_v, topk_length, sink_bias, kl_target, deterministic)
    args = (d_out, q, kv, out, lse, indices, *options)
    results = _SPARSE_BWD.call(args, (dq, dkv, d_sink, kl_target_out))
    asked_for = (True, True, sink_bias is not None, kl_target)
    return tuple(result for result, asked in zip(results, asked_for, strict=True) if asked)


def expand_block_selection(q2k: Tensor, factor: int, *, out: Tensor | None = None) -> Tensor:
    """The same selection for query blocks `factor` times smaller (docs/operators.md, section 6). On the CPU.

    Args:
        q2k: [rows, n] or [h_q, rows, n] int32.
        factor: how often each row is repeated, at least 1.
        out: [rows * factor, n] or [h_q, rows * factor, n] int32.

    Returns:
        out.

    Raises:
        RuntimeError: an argument is not as above. Nothing has been written then.
    """
    result = _EXPAND.call((q2k, factor), (out,))
    return result if out is None else out


def invert_block_selection(
    q2k: Tensor, num_kv_blocks: int, *, row_ptr: Tensor | None = None, q_blocks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Which query blocks selected each key block (docs/operators.md, section 6). On the CPU.

    Args:
        q2k: [rows, n] or [h_q, rows, n] int32; entries outside 0 .. num_kv_blocks - 1 are ignored.
        num_kv_blocks: how many key blocks there are.
        row_ptr: [num_kv_blocks + 1] or [h_q, num_kv_blocks + 1] int32.
        q_blocks: [number of q2k's elements] int32, of which the last row_ptr says how many are written.

    Returns:
        row_ptr and q_blocks: key block j (of head h) was selected by the query blocks
        ``q_blocks[row_ptr[(h,) j] : row_ptr[(h,) j + 1]]``, ascending and each once. A q_blocks that was not
        given has as many elements as there are.

    Raises:
        RuntimeError: an argument is not as above. Nothing has been written then.
    """
    pointers, blocks = _INVERT.call((q2k, num_kv_blocks), (row_ptr, q_blocks))
    if row_ptr is not None and q_blocks is None:
        blocks = blocks[: int(pointers.flatten()[-1]) if pointers.numel() else 0]
    return pointers, blocks
