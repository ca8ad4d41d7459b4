"""The training operators beside torch: its scaled_dot_product_attention, and token lists written in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# Loads torch.ops.tilewise.
import tilewise  # noqa: F401
import torch
from torch import Tensor


class Case(NamedTuple):
    name: str
    ours: Callable[[], Tensor]
    torch: Callable[[], Tensor]
    goal: tuple[float | None, float | None]  # times faster with AMX, and without
    same: bool = True  # both compute the same


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape).to(torch.bfloat16)


class _Causal(NamedTuple):
    """One causal sequence: the operator's arguments after q, k, v."""

    lengths: Tensor
    length: int
    scale: float

    def arguments(self) -> tuple[object, ...]:
        return (self.lengths, self.lengths, self.length, self.length, self.scale)


def _sequence(length: int, d_qk: int) -> _Causal:
    return _Causal(torch.tensor([0, length], dtype=torch.int32), length, d_qk**-0.5)


def _in_torch(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """[s, h, d] -> [s, h, d_v]."""
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)
    return out[0].transpose(0, 1)


def dense_forward(heads: int, length: int, d_qk: int, d_v: int, goal: float) -> Case:
    q, k, v = _normal(length, heads, d_qk), _normal(length, heads, d_qk), _normal(length, heads, d_v)
    sequence = _sequence(length, d_qk)
    return Case(
        f"dense_prefill_fwd causal {length} rows, {heads} heads, {d_qk}/{d_v}",
        lambda: torch.ops.tilewise.dense_prefill_fwd(q, k, v, *sequence.arguments(), True)[0],
        lambda: _in_torch(q, k, v, sequence.scale),
        (goal, None),
    )


def dense_backward(heads: int, length: int, d_qk: int, d_v: int, goal: float) -> Case:
    inputs = [_normal(length, heads, d).requires_grad_() for d in (d_qk, d_qk, d_v)]
    d_out, sequence = _normal(length, heads, d_v), _sequence(length, d_qk)
    detached = [x.detach() for x in inputs]
    out, lse = torch.ops.tilewise.dense_prefill_fwd(*detached, *sequence.arguments(), True)
    with torch.enable_grad():
        theirs = _in_torch(*inputs, sequence.scale)
    return Case(
        f"dense_prefill_bwd causal {length} rows, {heads} heads, {d_qk}/{d_v}",
        lambda: torch.ops.tilewise.dense_prefill_bwd(d_out, *detached, out, lse, *sequence.arguments(), True)[
            1
        ],
        lambda: torch.autograd.grad(theirs, inputs, d_out, retain_graph=True)[1],
        (goal, None),
    )


def block_sparse(heads: int, length: int, d_qk: int, d_v: int, goal: float) -> Case:
    """First and last four blocks of 128, beside this library's own dense kernel."""
    q, k, v = _normal(length, heads, d_qk), _normal(length, heads, d_qk), _normal(length, heads, d_v)
    sequence = _sequence(length, d_qk)
    block = torch.arange(length // 128)
    q2k = torch.stack([torch.zeros_like(block), *(block - i for i in range(4))], 1).to(torch.int32)
    return Case(
        f"block_sparse_prefill_fwd {length} rows, {heads} heads, {d_qk}/{d_v}, beside dense_prefill_fwd",
        lambda: torch.ops.tilewise.block_sparse_prefill_fwd(q, k, v, q2k, *sequence.arguments())[0],
        lambda: torch.ops.tilewise.dense_prefill_fwd(q, k, v, *sequence.arguments(), True)[0],
        (goal, None),
        same=False,
    )


def token_sparse_backward(tokens: int, heads: int, d: int, topk: int, rows: int) -> Case:
    q, kv = _normal(tokens, heads, d).requires_grad_(), _normal(rows, d).requires_grad_()
    indices = torch.randint(0, rows, (tokens, topk), dtype=torch.int32)
    d_out, scale = _normal(tokens, heads, 512), d**-0.5

    def in_torch() -> Tensor:
        listed = kv[indices]
        scores = torch.bmm(q, listed.transpose(1, 2)).float() * scale
        return torch.bmm(torch.softmax(scores, -1).bfloat16(), listed[:, :, :512])

    detached, keys, lists = q.detach(), kv.detach()[:, None], indices[:, None]
    out, _, lse, _ = torch.ops.tilewise.sparse_prefill_fwd(detached, keys, lists, scale)
    with torch.enable_grad():
        theirs = in_torch()
    return Case(
        f"sparse_prefill_bwd {tokens} tokens, {heads} heads, d {d}, topk {topk}, {rows} rows",
        lambda: torch.ops.tilewise.sparse_prefill_bwd(d_out, detached, keys, out, lse, lists, scale)[1],
        lambda: torch.autograd.grad(theirs, (q, kv), d_out, retain_graph=True)[1][:, None],
        (8, None),
    )


def cases() -> list[Callable[[], Case]]:
    return [
        lambda: dense_forward(8, 4096, 128, 128, 1.5),
        lambda: dense_backward(8, 4096, 128, 128, 1.5),
        lambda: dense_forward(8, 4096, 192, 128, 15),
        lambda: dense_backward(8, 4096, 192, 128, 6),
        lambda: block_sparse(8, 16384, 192, 128, 8),
        lambda: token_sparse_backward(128, 64, 576, 512, 4096),
        lambda: token_sparse_backward(128, 16, 576, 512, 4096),
    ]
