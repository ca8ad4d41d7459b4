"""Gradients of the training operators, registered with torch.

The formulas are functional operators themselves, so that torch.compile traces forward and backward without a
graph break. Gradients have no gradients: whoever differentiates them is told so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor


def _no_gradient(op: str, names: str) -> Callable[..., NoReturn]:
    def refuse(ctx: Any, *_: Tensor) -> NoReturn:
        raise RuntimeError(f"{op}: {names} must not be differentiated, they have no gradients of their own")

    return refuse


def _save_dense(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, cu_seqlens_q, cu_seqlens_k, *options, sink_bias = inputs
    ctx.save_for_backward(q, k, v, *output, cu_seqlens_q, cu_seqlens_k, sink_bias)
    ctx.options = tuple(options)
    ctx.mark_non_differentiable(output[1])


def _dense_backward(ctx: Any, d_out: Tensor, _d_lse: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, out, lse, cu_seqlens_q, cu_seqlens_k, sink_bias = ctx.saved_tensors
    lengths = (cu_seqlens_q, cu_seqlens_k)
    dq, dk, dv, d_sink = torch.ops.tilewise.dense_prefill_bwd.default(
        d_out, q, k, v, out, lse, *lengths, *ctx.options, sink_bias
    )
    others = (None,) * (len(lengths) + len(ctx.options))
    return dq, dk, dv, *others, None if sink_bias is None else d_sink


def _save_block_sparse(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, q2k, cu_seqlens_q, cu_seqlens_k, *options, sink_bias = inputs
    ctx.save_for_backward(q, k, v, *output, q2k, cu_seqlens_q, cu_seqlens_k, sink_bias)
    ctx.options = tuple(options)
    ctx.mark_non_differentiable(output[1])


def _block_sparse_backward(ctx: Any, d_out: Tensor, _d_lse: Tensor) -> tuple[Tensor | None, ...]:
    q, k, v, out, lse, *lists, sink_bias = ctx.saved_tensors
    dq, dk, dv, d_sink = torch.ops.tilewise.block_sparse_prefill_bwd.default(
        d_out, q, k, v, out, lse, *lists, *ctx.options, sink_bias
    )
    others = (None,) * (len(lists) + len(ctx.options))
    return dq, dk, dv, *others, None if sink_bias is None else d_sink


def _save_sparse(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, kv, indices, softmax_scale, d_v, topk_length, attn_sink, sink_bias, _indexer_topk = inputs
    if attn_sink is not None:
        raise RuntimeError(
            "sparse_prefill_fwd: attn_sink must be left out where gradients are wanted (sink_bias has them), "
            f"got {str(attn_sink.dtype).removeprefix('torch.')} {list(attn_sink.shape)}"
        )
    out, _max_logits, lse, _lse_indexer = output
    ctx.save_for_backward(q, kv, out, lse, indices, topk_length, sink_bias)
    ctx.options = (softmax_scale, d_v)
    ctx.mark_non_differentiable(*output[1:])


def _sparse_backward(ctx: Any, d_out: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    *tensors, topk_length, sink_bias = ctx.saved_tensors
    dq, dkv, d_sink, _kl_target = torch.ops.tilewise.sparse_prefill_bwd.default(
        d_out, *tensors, *ctx.options, topk_length, sink_bias
    )
    d_bias = None if sink_bias is None else d_sink
    # of indices, softmax_scale, d_v, topk_length, attn_sink; of indexer_topk
    return dq, dkv, None, None, None, None, None, d_bias, None


def _register(name: str, backward: Callable[..., Any], setup: Callable[..., None] | None = None) -> None:
    torch.library.register_autograd(f"tilewise::{name}", backward, setup_context=setup)


_register("dense_prefill_fwd", _dense_backward, _save_dense)
_register("dense_prefill_bwd", _no_gradient("dense_prefill_bwd", "dq, dk, dv and d_sink"))
_register("block_sparse_prefill_fwd", _block_sparse_backward, _save_block_sparse)
_register("block_sparse_prefill_bwd", _no_gradient("block_sparse_prefill_bwd", "dq, dk, dv and d_sink"))
_register("sparse_prefill_fwd", _sparse_backward, _save_sparse)
_register("sparse_prefill_bwd", _no_gradient("sparse_prefill_bwd", "dq, dkv, d_sink and kl_target"))
