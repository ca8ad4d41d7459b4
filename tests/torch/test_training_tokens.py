"""Gradients of attention to listed tokens against double-precision autograd of the same formula."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import tilewise
import torch
import training_oracle
from ops_calls import assert_same_bits, bf16, bits, fp32, generator
from test_native import INVALID
from torch import Tensor

LEAST_COSINE = 0.9999


class Case(NamedTuple):
    s_q: int = 12
    s_kv: int = 60
    heads: int = 8
    d: int = 576
    topk: int = 40
    lengths: bool = False
    holes: bool = False
    duplicates: bool = False
    sink: torch.dtype | None = None
    seed: int = 1

    def indices(self) -> Tensor:
        rows = 3 if self.duplicates else self.s_kv
        found = torch.randint(
            rows, (self.s_q, 1, self.topk), generator=generator(self.seed), dtype=torch.int32
        )
        if not self.holes:
            return found
        wrong = torch.tensor([*INVALID, self.s_kv], dtype=torch.int32)
        wrong = wrong.repeat(self.topk)[: self.topk].expand_as(found)
        return torch.where(fp32(*found.shape, seed=self.seed) > 0.5, wrong, found)

    def topk_length(self) -> Tensor | None:
        if not self.lengths:
            return None
        return torch.randint(
            -2, self.topk + 3, (self.s_q,), generator=generator(self.seed + 1), dtype=torch.int32
        )

    def tensors(self) -> list[Tensor | None]:
        """q, kv and sink_bias."""
        sink = None if self.sink is None else (fp32(self.heads, seed=self.seed) * 2).to(self.sink)
        return [
            bf16(self.s_q, self.heads, self.d, seed=self.seed),
            bf16(self.s_kv, 1, self.d, seed=self.seed + 50),
            sink,
        ]

    def d_out(self) -> Tensor:
        return bf16(self.s_q, self.heads, 512, seed=99)

    @property
    def scale(self) -> float:
        return self.d**-0.5

    def counts(self) -> Tensor:
        """[s_q, topk], which entries of the lists name a row."""
        lists, length = self.indices()[:, 0], self.topk_length()
        valid = (lists >= 0) & (lists < self.s_kv)
        if length is None:
            return valid
        return valid & (torch.arange(self.topk)[None] < length[:, None])

    def reference(self, q: Tensor, kv: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """out, lse and kl_target."""
        valid = self.counts()
        rows = kv[:, 0][torch.where(valid, self.indices()[:, 0], 0).long()]  # [s_q, topk, d]
        scores = (q @ rows.transpose(1, 2)) * self.scale
        seen = valid[:, None]
        # The helper's [h, q, k] is [s_q, h, topk] here, and the sink lies along h.
        weights, lse = (
            training_oracle.softmax_and_lse(scores, seen, None)
            if sink is None
            else with_sink(scores, seen, sink)
        )
        return weights @ rows[..., :512], lse, weights.sum(1)


def with_sink(scores: Tensor, seen: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
    """softmax_and_lse with the sink of each head, for scores [s_q, h, topk]."""
    by_head = scores.transpose(0, 1)
    weights, lse = training_oracle.softmax_and_lse(by_head, seen.transpose(0, 1), sink)
    return weights.transpose(0, 1), lse.transpose(0, 1)


CASES: dict[str, Case] = {
    "plain": Case(),
    "d 512": Case(d=512),
    "lengths": Case(lengths=True),
    "holes": Case(holes=True, d=512),
    "duplicates": Case(duplicates=True),
    "everything": Case(lengths=True, holes=True, duplicates=True, sink=torch.float32),
    "sink": Case(sink=torch.float32),
    "bfloat16 sink": Case(sink=torch.bfloat16, lengths=True, d=512),
    "float16 sink": Case(sink=torch.float16, holes=True),
    "one head": Case(heads=1),
    "odd heads": Case(heads=13, sink=torch.float32),
    "128 heads": Case(s_q=4, heads=128, lengths=True),
    "many tokens": Case(s_q=130, s_kv=400, heads=2, topk=100, holes=True),
    "one entry": Case(topk=1),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def native(case: Case, q: Tensor, kv: Tensor, sink: Tensor | None) -> tuple[Tensor, ...]:
    return tilewise.sparse_prefill_fwd(
        q, kv, case.indices(), case.scale, topk_length=case.topk_length(), sink_bias=sink
    )


def native_gradients(case: Case) -> tuple[Tensor, list[Tensor]]:
    tensors = training_oracle.leaves(case.tensors())
    out, _, _ = native(case, *tensors)
    found = torch.autograd.grad(out, [t for t in tensors if t is not None], case.d_out())
    return out.detach(), list(found)


@each_case
def test_gradients(case: Case) -> None:
    out, found = native_gradients(case)
    exact = training_oracle.both(case.reference, case.tensors(), case.d_out())
    names = ("out", "dq", "dkv", "d_sink")[: 1 + len(found)]
    training_oracle.assert_all_close(names, [out, *found], exact, LEAST_COSINE)


@each_case
def test_kl_target(case: Case) -> None:
    q, kv, sink = case.tensors()
    out, _, lse = native(case, q, kv, sink)
    lists = (case.indices(), case.scale, 512, case.topk_length(), sink)
    *gradients, target = tilewise.sparse_prefill_bwd(case.d_out(), q, kv, out, lse, *lists, kl_target=True)
    assert_same_bits(tuple(gradients), tuple(native_gradients(case)[1]))
    exact = case.reference(q.double(), kv.double(), None if sink is None else sink.double())[2]
    assert target.dtype == torch.float32
    assert (target[~case.counts()] == 0).all()
    assert torch.allclose(target.double(), exact, rtol=1e-3, atol=1e-4)


@each_case
def test_threads_change_no_bit(case: Case) -> None:
    results = []
    try:
        for threads in (1, 2):
            tilewise.set_num_threads(threads)
            out, found = native_gradients(case)
            results.append((out, *found))
    finally:
        tilewise.set_num_threads(0)
    assert_same_bits(results[0], results[1])


def test_rows_that_no_entry_names() -> None:
    """They may hold anything, and their gradient is 0."""
    case = Case(holes=True, duplicates=True)
    q, kv, _ = case.tensors()
    kv[3:] = float("nan")
    lists = case.indices()
    out, _, lse = tilewise.sparse_prefill_fwd(q, kv, lists, case.scale)
    dq, dkv = tilewise.sparse_prefill_bwd(case.d_out(), q, kv, out, lse, lists, case.scale)
    assert (bits(dkv[3:]) == 0).all()
    expected = native_gradients(case)[1]
    assert_same_bits((dq, dkv[:3]), (expected[0], expected[1][:3]))


def test_lonely_queries_have_no_gradient() -> None:
    case = Case(topk=6)
    q, kv, _ = case.tensors()
    lists = torch.full((12, 1, 6), -1, dtype=torch.int32)
    for sink in (None, fp32(8)):
        out, _, lse = tilewise.sparse_prefill_fwd(q, kv, lists, case.scale, sink_bias=sink)
        found = tilewise.sparse_prefill_bwd(
            case.d_out(), q, kv, out, lse, lists, case.scale, sink_bias=sink, kl_target=True
        )
        assert len(found) == (3 if sink is None else 4)
        assert all((gradient == 0).all() for gradient in found)
