"""The training operators in plain torch, in their inputs' precision, and how far the library may be off.

The formula runs under torch's autograd twice: in double precision, which is the truth, and in the inputs' own
narrow type, as a program without the library would. The library's error may be 1.5 times that of the second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

INF = math.inf
OFF = (-1, -1)


def softmax_and_lse(scores: Tensor, visible: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights and log-sum-exp over the last dimension; scores [h, q, k], sink [h]."""
    hidden = scores.masked_fill(~visible, -INF)
    if sink is not None:
        column = sink.to(scores.dtype)[:, None, None].expand(-1, scores.shape[1], 1)
        hidden = torch.cat([hidden, column], -1)
    # A row without anything in it must not reach torch's softmax, whose gradient there is NaN.
    lonely = (hidden == -INF).all(-1, keepdim=True)
    hidden = torch.where(lonely, 0, hidden)
    weights = torch.where(lonely, 0, hidden.softmax(-1))[..., : scores.shape[-1]]
    lse = torch.where(lonely[..., 0], INF, hidden.logsumexp(-1))
    return weights, lse


def visible_keys(s_q: int, s_k: int, causal: bool, window: Sequence[int]) -> Tensor:
    """[s_q, s_k], which keys the mask leaves to each query; positions are aligned at the sequence's end."""
    query = torch.arange(s_q)[:, None] + s_k - s_q
    key = torch.arange(s_k)[None]
    left, right = window
    seen = torch.ones(s_q, s_k, dtype=torch.bool)
    if causal:
        seen &= key <= query
    if left >= 0:
        seen &= key >= query - left
    if right >= 0:
        seen &= key <= query + right
    return seen


def selected_keys(rows: Tensor, s_q: int, s_k: int, q_block: int, kv_block: int) -> Tensor:
    """[s_q, s_k] from the rows [query blocks, n] of one sequence and head."""
    seen = torch.zeros(s_q, s_k, dtype=torch.bool)
    for block, row in enumerate(rows[: -(-s_q // q_block)].tolist()):
        queries = slice(block * q_block, (block + 1) * q_block)
        for key_block in row:
            if key_block >= 0:
                seen[queries, key_block * kv_block : (key_block + 1) * kv_block] = True
    return seen


def selection_of(
    q2k: Tensor | None, heads: int, first_row: int, s_q: int, s_k: int, q_block: int, kv_block: int
) -> Tensor:
    """[h or 1, s_q, s_k]."""
    if q2k is None:
        return torch.ones(1, s_q, s_k, dtype=torch.bool)
    lists = q2k if q2k.dim() == 3 else q2k[None]
    rows = lists[:, first_row:]
    return torch.stack([selected_keys(head, s_q, s_k, q_block, kv_block) for head in rows])


def varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ends_q: Sequence[int],
    ends_k: Sequence[int],
    scale: float,
    causal: bool = False,
    window: Sequence[int] = OFF,
    sink_bias: Tensor | None = None,
    q2k: Tensor | None = None,
    q_block: int = 128,
    kv_block: int = 128,
) -> tuple[Tensor, Tensor]:
    """dense_prefill_fwd, and block_sparse_prefill_fwd with a selection: out and lse."""
    h_q, group = q.shape[1], q.shape[1] // k.shape[1]
    outs = [q.new_zeros(ends_q[0], h_q, v.shape[2])]
    lses = [q.new_zeros(ends_q[0], h_q)]
    first_row = 0
    for i in range(len(ends_q) - 1):
        queries, keys = (slice(ends[i], ends[i + 1]) for ends in (ends_q, ends_k))
        s_q, s_k = ends_q[i + 1] - ends_q[i], ends_k[i + 1] - ends_k[i]
        heads = [x[keys].repeat_interleave(group, 1).transpose(0, 1) for x in (k, v)]
        seen = selection_of(q2k, h_q, first_row, s_q, s_k, q_block, kv_block)
        seen = seen & visible_keys(s_q, s_k, causal, window)
        scores = (q[queries].transpose(0, 1) @ heads[0].transpose(1, 2)) * scale
        weights, lse = softmax_and_lse(scores, seen, sink_bias)
        outs.append((weights.to(v.dtype) @ heads[1]).transpose(0, 1))
        lses.append(lse.transpose(0, 1))
        first_row += -(-s_q // q_block)
    rest = q.shape[0] - ends_q[-1]
    outs.append(q.new_zeros(rest, h_q, v.shape[2]))
    lses.append(q.new_zeros(rest, h_q))
    return torch.cat(outs), torch.cat(lses)


# ---- gradients and bounds -------------------------------------------------------------------------------


def leaves(tensors: Sequence[Tensor | None], dtype: torch.dtype | None = None) -> list[Tensor | None]:
    """Copies that gradients are wanted of, in another type where one is named."""
    return [
        None if t is None else t.detach().to(dtype or t.dtype, copy=True).requires_grad_() for t in tensors
    ]


def gradients(
    function: Callable[..., tuple[Tensor, ...]], tensors: Sequence[Tensor | None], d_out: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """What `function` gives first, and the gradients of the tensors that are there."""
    out = function(*tensors)[0]
    present = [t for t in tensors if t is not None]
    return out.detach(), list(torch.autograd.grad(out, present, d_out.to(out.dtype)))


def both(
    function: Callable[..., tuple[Tensor, ...]], tensors: Sequence[Tensor | None], d_out: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """out and all gradients, in double precision and in the tensors' own types."""
    exact_out, exact = gradients(function, leaves(tensors, torch.float64), d_out)
    narrow_out, narrow = gradients(function, leaves(tensors), d_out)
    return [exact_out, *exact], [narrow_out, *narrow]


def relative_error(got: Tensor, exact: Tensor) -> float:
    return float((got.double() - exact).norm() / exact.norm())


def cosine(got: Tensor, exact: Tensor) -> float:
    got, exact = got.double().flatten(), exact.flatten()
    return float(got @ exact / (got.norm() * exact.norm()))


LEAST_COSINE = 0.99999
ROUNDING = 1e-5  # what fp32 arithmetic leaves of gradients that cancel to 0


def assert_close(name: str, got: Tensor, exact: Tensor, narrow: Tensor, least_cosine: float) -> None:
    assert got.shape == exact.shape
    assert got.isfinite().all(), name
    if exact.norm() == 0:
        assert got.abs().max() <= ROUNDING, name
        return
    found = cosine(got, exact)
    assert found >= least_cosine, f"{name}: a cosine of {found:.7f}"
    error, bound = relative_error(got, exact), 1.5 * relative_error(narrow, exact)
    assert error <= bound, f"{name}: a relative error of {error:.3g}, at most {bound:.3g} expected"


def assert_all_close(
    names: Sequence[str],
    got: Sequence[Tensor],
    found: tuple[Sequence[Any], Sequence[Any]],
    least_cosine: float = LEAST_COSINE,
) -> None:
    for name, one, exact, narrow in zip(names, got, *found, strict=True):
        assert_close(name, one, exact, narrow, least_cosine)
