"""Training as FlashMLA's callers call it: whole sequences, selected blocks of keys, listed tokens' gradients.

What each operator means: docs/operators.md. Everything is checked before anything is written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import tilewise
import torch
from tilewise._operator import refuse_grad

from flash_mla._arguments import UNBOUNDED, default_scale, first_sizes, window_pair
from flash_mla._errors import describe, named_errors

_HEAD_DIM_V = {192: 128, 128: 128, 64: 64}  # by head_dim_qk
_SEQUENCES = {
    "cu_seqlens_q": "cu_seqlens_qo",
    "cu_seqlens_k": "cu_seqlens_kv",
    "max_seqlen_q": "max_seqlen_qo",
    "max_seqlen_k": "max_seqlen_kv",
    "window must": "window_size must",
}
_BLOCKS = {
    "q2k": "q2k_blocks",
    "softmax_scale": "sm_scale",
    "q_block": "q_block_size",
    "kv_block": "kv_block_size",
    "window must": "window_size must",
    "sink_bias": "attn_sink",
}


def _check_dropout(function: str, dropout_p: float) -> None:
    if dropout_p != 0:
        raise ValueError(f"{function}: dropout_p must be 0, got {describe(dropout_p)}")


def _check_packed(function: str, name: str, packed: torch.Tensor, head_dim_qk: int, parts: int) -> None:
    """Refuses what cannot be split into `parts` tensors of head_dim_qk columns and V."""
    if head_dim_qk not in _HEAD_DIM_V:
        sizes = f"{', '.join(map(str, [*_HEAD_DIM_V][:-1]))} or {[*_HEAD_DIM_V][-1]}"
        raise ValueError(f"{function}: head_dim_qk must be {sizes}, got {describe(head_dim_qk)}")
    width = parts * head_dim_qk + _HEAD_DIM_V[head_dim_qk]
    good_type = packed.dtype in (torch.bfloat16, torch.float16)
    if not good_type or packed.dim() != 3 or packed.shape[2] != width:
        raise ValueError(
            f"{function}: {name} must be bfloat16 or float16 [total, h, {width}], got {describe(packed)}"
        )


@named_errors(("dense_prefill_fwd",), _SEQUENCES)
def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_qo: torch.Tensor,
    cu_seqlens_kv: torch.Tensor,
    max_seqlen_qo: int,
    max_seqlen_kv: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
    window_size: Sequence[int] | int | None = UNBOUNDED,
    sink_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of sequences laid end to end, each to its own keys. Differentiable in q, k, v and sink_bias.

    Args:
        q: bfloat16 or float16 [total_q, h_q, d_qk]; d_qk/d_v 192/128, 128/128 or 64/64.
        k: of q's type, [total_k, h_kv, d_qk]; h_kv divides h_q.
        v: of q's type, [total_k, h_kv, d_v].
        cu_seqlens_qo, cu_seqlens_kv: int32 [b + 1], the first row of each sequence and the end of the last.
        max_seqlen_qo, max_seqlen_kv: upper bounds of a sequence's rows.
        dropout_p: 0.
        softmax_scale: factor of the scores; None: d_qk ** -0.5.
        causal: query i of s_q sees keys up to `s_k - s_q + i`.
        deterministic: gradients are bitwise repeatable either way.
        is_varlen: changes nothing, the lengths rule.
        window_size: (left, right), -1 unbounded: keys from `pos - left` to `pos + right` of the query's
            position, aligned at the sequence's end; or W: that many keys, the query's own the last, W <= 0
            off; or None: off.
        sink_bias: float32, bfloat16 or float16 [h_q], the score of a key without a value, in lse too.

    Returns:
        out [total_q, h_q, d_v] of q's type and lse [total_q, h_q] float32, natural logarithm, without a
        gradient. A query without keys: out 0, lse +inf (sink_bias where that is given).

    Raises:
        TypeError, ValueError: refused here. RuntimeError: refused by the operator.

    Source: docs/operators.md, section 5.
    """
    _check_dropout("flash_attn_varlen_func", dropout_p)
    window = window_pair("flash_attn_varlen_func", window_size)
    return tilewise.dense_prefill_fwd(
        q,
        k,
        v,
        cu_seqlens_qo,
        cu_seqlens_kv,
        max_seqlen_qo,
        max_seqlen_kv,
        default_scale(q) if softmax_scale is None else softmax_scale,
        causal,
        window,
        sink_bias,
    )


@named_errors(
    ("dense_prefill_fwd",),
    {
        "cu_seqlens_q": "cu_seqlens",
        "cu_seqlens_k": "cu_seqlens",
        "max_seqlen_q": "max_seqlen",
        "max_seqlen_k": "max_seqlen",
        "window must": "window_size must",
        "q must": "qkv must",
        "k must": "qkv must",
        "v must": "qkv must",
    },
)
def flash_attn_varlen_qkvpacked_func(
    qkv: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_seqlen: int,
    head_dim_qk: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
    window_size: Sequence[int] | int | None = UNBOUNDED,
) -> tuple[torch.Tensor, torch.Tensor]:
    """flash_attn_varlen_func of q, k and v in one tensor, whose gradient is one tensor too.

    Args:
        qkv: bfloat16 or float16 [total, h, 2 * d_qk + d_v], a head's columns of q, k and v side by side.
        cu_seqlens: int32 [b + 1], the first row of each sequence and the end of the last.
        max_seqlen: an upper bound of a sequence's rows.
        head_dim_qk: d_qk, 192, 128 or 64.
        dropout_p, softmax_scale, causal, deterministic, is_varlen, window_size: as there.

    Returns:
        out [total, h, d_v] of qkv's type and lse [total, h] float32, as there.

    Raises:
        TypeError, ValueError: refused here. RuntimeError: refused by the operator.

    Source: docs/operators.md, section 5.
    """
    function = "flash_attn_varlen_qkvpacked_func"
    _check_dropout(function, dropout_p)
    window = window_pair(function, window_size)
    _check_packed(function, "qkv", qkv, head_dim_qk, parts=2)
    q, k, v = qkv.split([head_dim_qk, head_dim_qk, _HEAD_DIM_V[head_dim_qk]], dim=-1)
    scale = default_scale(q) if softmax_scale is None else softmax_scale
    lengths = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    return tilewise.dense_prefill_fwd(q, k, v, *lengths, scale, causal, window)


@named_errors(("dense_prefill_fwd",), {**_SEQUENCES, "k must": "kv must", "v must": "kv must"})
def flash_attn_varlen_kvpacked_func(
    q: torch.Tensor,
    kv: torch.Tensor,
    cu_seqlens_qo: torch.Tensor,
    cu_seqlens_kv: torch.Tensor,
    max_seqlen_qo: int,
    max_seqlen_kv: int,
    head_dim_qk: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    deterministic: bool = False,
    is_varlen: bool = True,
    window_size: Sequence[int] | int | None = UNBOUNDED,
) -> tuple[torch.Tensor, torch.Tensor]:
    """flash_attn_varlen_func of k and v in one tensor, whose gradient is one tensor too.

    Args:
        q: bfloat16 or float16 [total_q, h_q, d_qk].
        kv: of q's type, [total_k, h_kv, d_qk + d_v], a head's columns of k and v side by side.
        cu_seqlens_qo, cu_seqlens_kv: int32 [b + 1], the first row of each sequence and the end of the last.
        max_seqlen_qo, max_seqlen_kv: upper bounds of a sequence's rows.
        head_dim_qk: d_qk, 192, 128 or 64.
        dropout_p, softmax_scale, causal, deterministic, is_varlen, window_size: as there.

    Returns:
        out [total_q, h_q, d_v] of q's type and lse [total_q, h_q] float32, as there.

    Raises:
        TypeError, ValueError: refused here. RuntimeError: refused by the operator.

    Source: docs/operators.md, section 5.
    """
    function = "flash_attn_varlen_kvpacked_func"
    _check_dropout(function, dropout_p)
    window = window_pair(function, window_size)
    _check_packed(function, "kv", kv, head_dim_qk, parts=1)
    k, v = kv.split([head_dim_qk, _HEAD_DIM_V[head_dim_qk]], dim=-1)
    scale = default_scale(q) if softmax_scale is None else softmax_scale
    lengths = (cu_seqlens_qo, cu_seqlens_kv, max_seqlen_qo, max_seqlen_kv)
    return tilewise.dense_prefill_fwd(q, k, v, *lengths, scale, causal, window)


# ---- selected blocks of keys ----------------------------------------------------------------------------


def _one_sequence(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    """The lengths of a single sequence, made on the device."""
    sizes = [x.shape[0] if x.dim() else 0 for x in (q, k)]
    ends = [
        torch.arange(2, dtype=torch.int32, device=x.device) * s for x, s in zip((q, k), sizes, strict=True)
    ]
    return ends[0], ends[1], sizes[0], sizes[1]


def _check_selection(
    function: str, q: torch.Tensor, q2k_blocks: torch.Tensor | None, q_block_size: int
) -> None:
    """One sequence's query blocks are known here: a selection for larger blocks has too few rows."""
    if q2k_blocks is None or q2k_blocks.dim() not in (2, 3) or q.dim() == 0 or q_block_size < 1:
        return  # what is wrong with that, the operator says
    wanted = math.ceil(q.shape[0] / q_block_size)
    if q2k_blocks.shape[-2] < wanted:
        raise ValueError(
            f"{function}: q2k_blocks must be of at least {wanted} rows for {q.shape[0]} queries in blocks of "
            f"{q_block_size}, got {describe(q2k_blocks)}"
        )


@named_errors(("block_sparse_prefill_fwd",), _BLOCKS)
def block_sparse_prefill_fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q2k_blocks: torch.Tensor | None,
    sm_scale: float,
    attn_sink: torch.Tensor | None = None,
    *,
    window_size: Sequence[int] | int | None = -1,
    kv_block_size: int = 128,
    q_block_size: int = 256,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of one sequence in which each block of queries selects blocks of keys.

    Carries no autograd, as in FlashMLA: `block_sparse_prefill_bwd` has the gradients, and
    `tilewise.block_sparse_prefill_fwd` is differentiable.

    Args:
        q: bfloat16 or float16 [s, h, d_qk]; d_qk/d_v 192/128 or 128/128.
        k: of q's type, [s_k, h_kv, d_qk]; h_kv divides h.
        v: of q's type, [s_k, h_kv, d_v].
        q2k_blocks: int32 [ceil(s / q_block_size), n] or [h, ceil(s / q_block_size), n], the key blocks of
            each query block. Negative entries are pads, duplicates count once. None: every block.
        sm_scale: factor of the scores.
        attn_sink: float32, bfloat16 or float16 [h], the score of a key without a value, in lse too.
        window_size: (left, right) as in `flash_attn_varlen_func`; or W: that many keys, the query's own the
            last, W <= 0 off; or None: off.
        kv_block_size: 128 or 64.
        q_block_size: a multiple of 64.

    Returns:
        o [s, h, d_v] of q's type and lse [h, s] float32, natural logarithm. A query without keys: o 0,
        lse +inf (attn_sink where that is given).

    Raises:
        TypeError, ValueError: refused here. RuntimeError: refused by the operator.

    Source: docs/operators.md, section 6.
    """
    if torch.is_grad_enabled():
        reason = "the function is not differentiable (tilewise.block_sparse_prefill_fwd is)"
        tensors = {"q": q, "k": k, "v": v, "attn_sink": attn_sink}
        refuse_grad("block_sparse_prefill_fwd", tensors, reason)
    window = window_pair("block_sparse_prefill_fwd", window_size)
    _check_selection("block_sparse_prefill_fwd", q, q2k_blocks, q_block_size)
    blocks = (q_block_size, kv_block_size)
    out, lse = tilewise.block_sparse_prefill_fwd(
        q, k, v, q2k_blocks, *_one_sequence(q, k), sm_scale, *blocks, True, window, attn_sink
    )
    return out, lse.t().contiguous()


@named_errors(("block_sparse_prefill_bwd",), {**_BLOCKS, "d_out": "do_grad", "out must": "o must"})
def block_sparse_prefill_bwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    do_grad: torch.Tensor,
    lse: torch.Tensor,
    q2k_blocks: torch.Tensor | None,
    sm_scale: float,
    window_size: Sequence[int] | int | None = -1,
    kv_block_size: int = 128,
    q_block_size: int = 64,
    attn_sink: torch.Tensor | None = None,
    *,
    deterministic: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """The gradients of `block_sparse_prefill_fwd`.

    Args:
        q, k, v, sm_scale, window_size, kv_block_size, attn_sink: as there.
        o, lse: what it returned; lse [h, s], or [s, h] where h is not s.
        do_grad: of q's type, [s, h, d_v], the gradient of o.
        q2k_blocks: as there, of this call's q_block_size: `expand_block_selection` makes the one from the
            other.
        q_block_size: a multiple of 64.
        deterministic: False allows a kernel to add in any order; CPU kernels never do.

    Returns:
        dq, dk, dv as q, k and v, and d_sink [h] in attn_sink's type, None without it.

    Raises:
        TypeError, ValueError: refused here. RuntimeError: refused by the operator.

    Source: docs/operators.md, section 6.
    """
    window = window_pair("block_sparse_prefill_bwd", window_size)
    _check_selection("block_sparse_prefill_bwd", q, q2k_blocks, q_block_size)
    s, h = first_sizes(q, 2)
    # What is wrong with q itself, the operator says.
    if q.dim() == 3 and (lse.dtype != torch.float32 or tuple(lse.shape) not in ((h, s), (s, h))):
        raise ValueError(
            f"block_sparse_prefill_bwd: lse must be float32 [{h}, {s}] or [{s}, {h}], got {describe(lse)}"
        )
    by_token = lse.t() if tuple(lse.shape) == (h, s) else lse
    options = (q_block_size, kv_block_size, True, window, attn_sink, deterministic)
    dq, dk, dv, *d_sink = tilewise.block_sparse_prefill_bwd(
        do_grad, q, k, v, o, by_token, q2k_blocks, *_one_sequence(q, k), sm_scale, *options
    )
    return dq, dk, dv, d_sink[0] if d_sink else None


@named_errors(("expand_block_selection",), {"q2k": "q2k_blocks"})
def expand_block_selection(q2k_blocks: torch.Tensor, factor: int) -> torch.Tensor:
    """The same selection for query blocks `factor` times smaller: each row repeated `factor` times.

    Args:
        q2k_blocks: int32 [rows, n] or [h, rows, n].
        factor: at least 1.

    Returns:
        int32 [rows * factor, n] or [h, rows * factor, n].

    Raises:
        TypeError: refused here. RuntimeError: refused by the operator.

    Source: docs/operators.md, section 6.
    """
    return tilewise.expand_block_selection(q2k_blocks, factor)


# ---- listed tokens --------------------------------------------------------------------------------------


@named_errors(
    ("sparse_prefill_bwd",), {"softmax_scale": "sm_scale", "d_out": "do_grad", "out must": "o must"}
)
def flash_mla_sparse_bwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    o: torch.Tensor,
    do_grad: torch.Tensor,
    indices: torch.Tensor,
    lse: torch.Tensor,
    dq_acc_workspace: torch.Tensor | None,
    dkv_acc_workspace: torch.Tensor | None,
    sm_scale: float,
    d_v: int = 512,
    fuse_reducesum: bool = True,
    *,
    topk_length: torch.Tensor | None = None,
    sink_bias: torch.Tensor | None = None,
    deterministic: bool = True,
) -> tuple[torch.Tensor, ...]:
    """The gradients of prefill over listed keys.

    Args:
        q: bfloat16 [s_q, h_q, d_qk], d_qk 576 or 512.
        kv: bfloat16 [s_kv, 1, d_qk]; V is its first 512 columns.
        o: bfloat16 [s_q, h_q, 512], the forward's output.
        do_grad: bfloat16 [s_q, h_q, 512], its gradient.
        indices: int32 [s_q, 1, topk]; entries outside 0 .. s_kv - 1 are skipped.
        lse: float32 [s_q, h_q], logarithm to the base 2 (`flash_mla_sparse_fwd` gives the natural one), with
            sink_bias in it. It is believed: an entry's weight is 2 ** (score / ln 2 - lse).
        dq_acc_workspace, dkv_acc_workspace: float32 of at least q's and kv's elements, or None; unused.
        sm_scale: factor of the scores.
        d_v: 512.
        fuse_reducesum: also return kl_target.
        topk_length: int32 [s_q]: how many entries of a list count, from its front.
        sink_bias: float32, bfloat16 or float16 [h_q], the score of a key without a value.
        deterministic: False allows a kernel to add in any order; CPU kernels never do.

    Returns:
        dq, dkv as q and kv (the gradient of V is added into its first 512 columns); with fuse_reducesum
        kl_target float32 [s_q, topk], the entries' weights summed over the heads, 0 where an entry is
        skipped; with sink_bias d_sink [h_q] in its type.

    Raises:
        TypeError, ValueError: refused here. RuntimeError: refused by the operator.

    Source: docs/operators.md, section 4.
    """
    workspaces = {"dq_acc_workspace": (dq_acc_workspace, q), "dkv_acc_workspace": (dkv_acc_workspace, kv)}
    for name, (workspace, of) in workspaces.items():
        if workspace is None or (workspace.dtype == torch.float32 and workspace.numel() >= of.numel()):
            continue
        raise ValueError(
            f"flash_mla_sparse_bwd: {name} must be float32 of at least {of.numel()} elements, or None, "
            f"got {describe(workspace)}"
        )
    # One of another type is the operator's to refuse.
    natural_lse = lse * math.log(2) if lse.dtype == torch.float32 else lse
    options = (sm_scale, d_v, topk_length, sink_bias, fuse_reducesum, deterministic)
    dq, dkv, *others = tilewise.sparse_prefill_bwd(do_grad, q, kv, o, natural_lse, indices, *options)
    return dq, dkv, *reversed(others)
