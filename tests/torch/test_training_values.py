"""Outputs and gradients of the training operators against double-precision autograd of the same formula."""

from __future__ import annotations

from typing import Any, NamedTuple

import oracle
import pytest
import tilewise
import torch
import training_oracle
from ops_calls import assert_same_bits, bits, fp32, generator, i32
from torch import Tensor
from training_oracle import OFF

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


class Case(NamedTuple):
    """Sequences, heads and options of a call; a sequence is (queries, keys)."""

    sequences: tuple[tuple[int, int], ...] = ((150, 150), (0, 20), (70, 130))
    d: tuple[int, int] = (128, 128)
    heads: tuple[int, int] = (4, 2)
    dtype: torch.dtype = BF16
    causal: bool = True
    window: tuple[int, int] = OFF
    sink: torch.dtype | None = None
    selection: tuple[int, int, int] | None = None  # q_block, kv_block, width
    per_head: bool = False
    seed: int = 1

    @property
    def ends(self) -> tuple[list[int], list[int]]:
        ends_q, ends_k = [0], [0]
        for s_q, s_k in self.sequences:
            ends_q.append(ends_q[-1] + s_q)
            ends_k.append(ends_k[-1] + s_k)
        return ends_q, ends_k

    def tensors(self) -> list[Tensor | None]:
        """q, k, v and sink_bias."""
        (total_q, total_k), (h_q, h_kv), (d_qk, d_v) = (e[-1] for e in self.ends), self.heads, self.d
        shapes = ((total_q, h_q, d_qk), (total_k, h_kv, d_qk), (total_k, h_kv, d_v))
        made: list[Tensor | None] = [
            fp32(*shape, seed=10 * self.seed + i).to(self.dtype) for i, shape in enumerate(shapes)
        ]
        sink = None if self.sink is None else (fp32(h_q, seed=self.seed) * 2).to(self.sink)
        return [*made, sink]

    def q2k(self) -> Tensor | None:
        if self.selection is None:
            return None
        q_block, kv_block, width = self.selection
        rows = sum(-(-s_q // q_block) for s_q, _ in self.sequences)
        blocks = max(-(-s_k // kv_block) for _, s_k in self.sequences)
        heads = (self.heads[0],) if self.per_head else ()
        shape = (*heads, rows, width)
        return torch.randint(-1, blocks + 1, shape, generator=generator(self.seed), dtype=torch.int32)

    @property
    def scale(self) -> float:
        return self.d[0] ** -0.5

    def reference(self, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
        options = {"causal": self.causal, "window": self.window, "sink_bias": sink}
        if self.selection is not None:
            q_block, kv_block, _ = self.selection
            options |= {"q2k": self.q2k(), "q_block": q_block, "kv_block": kv_block}
        return training_oracle.varlen(q, k, v, *self.ends, self.scale, **options)

    def native(self, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor]:
        longest = [max(s[i] for s in self.sequences) for i in range(2)]
        lengths = (*(i32(*ends) for ends in self.ends), *longest, self.scale)
        options: dict[str, Any] = {"causal": self.causal, "window": self.window, "sink_bias": sink}
        if self.selection is None:
            return tilewise.dense_prefill_fwd(q, k, v, *lengths, **options)
        q_block, kv_block, _ = self.selection
        options |= {"q_block": q_block, "kv_block": kv_block}
        return tilewise.block_sparse_prefill_fwd(q, k, v, self.q2k(), *lengths, **options)

    def d_out(self) -> Tensor:
        return fp32(self.ends[0][-1], self.heads[0], self.d[1], seed=99).to(self.dtype)


ONE = ((200, 200),)
CASES: dict[str, Case] = {
    "causal": Case(),
    "no mask": Case(causal=False),
    "192/128": Case(d=(192, 128)),
    "64/64": Case(d=(64, 64)),
    "float16": Case(dtype=FP16),
    "float16 192/128": Case(d=(192, 128), dtype=FP16, causal=False),
    "float16 64/64 window": Case(d=(64, 64), dtype=FP16, window=(20, 0)),
    "window": Case(window=(40, 0)),
    "window on both sides": Case(causal=False, window=(40, 7)),
    "window to the right": Case(causal=False, window=(-1, 3)),
    "window of one key": Case(window=(0, 0)),
    "sink": Case(sink=FP32),
    "bfloat16 sink": Case(sink=BF16, d=(192, 128), window=(60, 0)),
    "float16 sink": Case(sink=FP16, dtype=FP16),
    "no groups": Case(heads=(3, 3)),
    "one KV head": Case(heads=(5, 1), sink=FP32),
    "groups of four": Case(heads=(8, 2), d=(192, 128), causal=False),
    "one query": Case(((1, 300), (1, 1))),
    "more queries than keys": Case(((90, 30), (5, 0), (64, 64))),
    "one long sequence": Case(((700, 700),), heads=(2, 1), d=(192, 128), sink=FP32),
    "selection": Case(selection=(128, 128, 2)),
    "selection 192/128": Case(((300, 300), (129, 260)), d=(192, 128), selection=(64, 64, 3)),
    "selection of each head": Case(((300, 300), (70, 130)), selection=(64, 64, 3), per_head=True),
    "selection float16": Case(ONE, dtype=FP16, selection=(64, 128, 1), sink=FP16),
    "selection, large blocks": Case(((600, 600),), heads=(2, 2), selection=(256, 128, 3), sink=FP32),
    "selection, no mask": Case(causal=False, selection=(64, 64, 2), sink=BF16),
    "selection and window": Case(((300, 300),), window=(90, 0), selection=(128, 64, 4), per_head=True),
    "selection and wide window": Case(((300, 300),), causal=False, window=(64, 64), selection=(64, 64, 3)),
    "selection, one KV head": Case(ONE, heads=(4, 1), selection=(64, 64, 2), per_head=True, sink=FP32),
    "empty selection": Case(ONE, selection=(128, 128, 0), sink=FP32),
}
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def native_gradients(case: Case) -> tuple[Tensor, Tensor, list[Tensor]]:
    tensors = training_oracle.leaves(case.tensors())
    out, lse = case.native(*tensors)
    found = torch.autograd.grad(out, [t for t in tensors if t is not None], case.d_out())
    return out.detach(), lse, list(found)


@each_case
def test_values_and_gradients(case: Case) -> None:
    out, lse, found = native_gradients(case)
    exact = training_oracle.both(case.reference, case.tensors(), case.d_out())
    names = ("out", "dq", "dk", "dv", "d_sink")[: 1 + len(found)]
    training_oracle.assert_all_close(names, [out, *found], exact)
    oracle.assert_logs(lse, case.reference(*(None if t is None else t.double() for t in case.tensors()))[1])
    wanted = [tensor.dtype for tensor in case.tensors() if tensor is not None]
    assert [gradient.dtype for gradient in found] == wanted


@each_case
def test_threads_change_no_bit(case: Case) -> None:
    results = []
    try:
        for threads in (1, 2):
            tilewise.set_num_threads(threads)
            out, lse, found = native_gradients(case)
            results.append((out, lse, *found))
    finally:
        tilewise.set_num_threads(0)
    assert_same_bits(results[0], results[1])


# ---- the same computation said in other words -------------------------------------------------------------


def assert_same_results(one: Case, other: Case) -> None:
    out, lse, found = native_gradients(one)
    other_out, other_lse, other_found = native_gradients(other)
    assert_same_bits((out, lse, *found), (other_out, other_lse, *other_found))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("selection", [None, (64, 64, 2)])
def test_a_window_that_hides_nothing_changes_no_bit(causal: bool, selection: Any) -> None:
    case = Case(causal=causal, selection=selection, sink=FP32)
    for wide in ((10**6, -1), (149, 0 if causal else 10**6)):
        assert_same_results(case, case._replace(window=wide))


def test_causal_is_a_window_without_keys_to_the_right() -> None:
    case = Case(causal=False, window=(-1, 0))
    out, lse, found = native_gradients(case)
    expected = native_gradients(Case())
    assert_same_bits((out, lse, *found), (expected[0], expected[1], *expected[2]))


def test_no_selection_is_dense() -> None:
    case = Case(((300, 300), (70, 130)), d=(192, 128), sink=FP32)
    q, k, v, sink = case.tensors()
    lengths = (*(i32(*ends) for ends in case.ends), 300, 300, case.scale)
    got = tilewise.block_sparse_prefill_fwd(q, k, v, None, *lengths, sink_bias=sink)
    dense = tilewise.dense_prefill_fwd(q, k, v, *lengths, causal=True, sink_bias=sink)
    for one, other in zip(got, dense, strict=True):
        assert torch.allclose(one.float(), other.float(), rtol=1e-2, atol=1e-2)


def test_order_duplicates_and_width_of_a_selection_change_no_bit() -> None:
    case = Case(((300, 300),), selection=(64, 64, 3))
    q, k, v, _ = case.tensors()
    lengths = (*(i32(*ends) for ends in case.ends), 300, 300, case.scale)
    q2k = case.q2k()
    again = torch.cat(
        [q2k.flip(-1), torch.full((5, 2), -7, dtype=torch.int32), q2k, i32(99).expand(5, 1)], -1
    )
    blocks = {"q_block": 64, "kv_block": 64}
    expected = tilewise.block_sparse_prefill_fwd(q, k, v, q2k, *lengths, **blocks)
    assert_same_bits(tilewise.block_sparse_prefill_fwd(q, k, v, again, *lengths, **blocks), expected)
    d_out = case.d_out()
    found = [
        tilewise.block_sparse_prefill_bwd(d_out, q, k, v, *expected, lists, *lengths, **blocks)
        for lists in (q2k, again)
    ]
    assert_same_bits(found[1], found[0])


def test_an_expanded_selection_selects_the_same() -> None:
    case = Case(((300, 300),), selection=(128, 64, 3), per_head=True)
    q, k, v, _ = case.tensors()
    lengths = (*(i32(*ends) for ends in case.ends), 300, 300, case.scale)
    coarse = tilewise.block_sparse_prefill_fwd(q, k, v, case.q2k(), *lengths, 128, 64)
    fine_lists = tilewise.expand_block_selection(case.q2k(), 2)
    fine = tilewise.block_sparse_prefill_fwd(q, k, v, fine_lists, *lengths, 64, 64)
    for one, other in zip(coarse, fine, strict=True):
        assert torch.allclose(one.float(), other.float(), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("heads", [(), (3,)])
def test_invert_names_each_pair_once(heads: tuple[int, ...]) -> None:
    q2k = torch.randint(-2, 8, (*heads, 9, 4), generator=generator(5), dtype=torch.int32)
    row_ptr, q_blocks = tilewise.invert_block_selection(q2k, 6)
    lists, pointers = (x if heads else x[None] for x in (q2k, row_ptr))
    assert row_ptr.shape == (*heads, 7) and q_blocks.shape == (int(row_ptr.flatten()[-1]),)
    for rows, places in zip(lists, pointers.tolist(), strict=True):
        for block in range(6):
            expected = [i for i, row in enumerate(rows.tolist()) if block in row]
            assert q_blocks[places[block] : places[block + 1]].tolist() == expected


def test_invert_with_outputs_of_the_callers() -> None:
    q2k = torch.randint(-1, 4, (5, 3), generator=generator(5), dtype=torch.int32)
    expected = tilewise.invert_block_selection(q2k, 4)
    for names in (("row_ptr", "q_blocks"), ("row_ptr",), ("q_blocks",)):
        room = {"row_ptr": torch.full((5,), -9).int(), "q_blocks": torch.full((15,), -9).int()}
        given = {name: room[name] for name in names}
        result = dict(zip(room, tilewise.invert_block_selection(q2k, 4, **given), strict=True))
        assert all(result[name] is given[name] for name in names)
        n = len(expected[1])
        assert torch.equal(result["row_ptr"], expected[0])
        assert torch.equal(result["q_blocks"][:n], expected[1])
        assert len(result["q_blocks"]) == (15 if "q_blocks" in names else n)
        assert "q_blocks" not in names or (result["q_blocks"][n:] == -9).all()


# ---- rows outside all sequences, and odd lengths ----------------------------------------------------------


def test_rows_outside_the_sequences() -> None:
    case = Case(((100, 120),), sink=FP32)
    q, k, v, sink = case.tensors()
    padded = [
        torch.cat([torch.full_like(t[:9], float("nan")), t, torch.full_like(t[:7], float("nan"))])
        for t in (q, k, v)
    ]
    lengths = (i32(9, 109), i32(9, 129), 100, 120, case.scale, True, OFF, sink)
    out, lse = (torch.full(s, 5.0, dtype=t) for s, t in (((116, 4, 128), BF16), ((116, 4), FP32)))
    tilewise.dense_prefill_fwd(*padded, *lengths, out=out, lse=lse)
    expected = case.native(q, k, v, sink)
    assert_same_bits((out[9:109], lse[9:109]), expected)
    assert all((t[rows] == 5).all() for t in (out, lse) for rows in (slice(0, 9), slice(109, None)))

    d_out = torch.cat([torch.full_like(out[:9], float("nan")), case.d_out(), torch.full_like(out[:7], 3)])
    found = tilewise.dense_prefill_bwd(d_out, *padded, out, lse, *lengths)
    inner = tilewise.dense_prefill_bwd(
        case.d_out(), q, k, v, *expected, i32(0, 100), i32(0, 120), *lengths[2:]
    )
    for gradient, without, length in zip(found[:3], inner[:3], (100, 120, 120), strict=True):
        assert torch.equal(bits(gradient[9 : 9 + length]), bits(without))
        assert (gradient[:9] == 0).all() and (gradient[9 + length :] == 0).all()
    assert torch.equal(found[3], inner[3])


def test_lonely_queries_have_no_gradient() -> None:
    case = Case(((90, 30),), sink=FP32)
    for sink in (None, case.tensors()[3]):
        tensors = training_oracle.leaves([*case.tensors()[:3], sink])
        out, lse = case.native(*tensors)
        expected = torch.inf if sink is None else sink
        assert (out[:60] == 0).all() and (lse[:60] == expected).all()
        dq, *_ = torch.autograd.grad(out, [t for t in tensors if t is not None], case.d_out())
        assert (dq[:60] == 0).all() and (dq[61:] != 0).any()


def test_calls_of_a_part_of_the_keys_add_up() -> None:
    case = Case(((150, 150),), causal=False, sink=FP32)
    q, k, v, sink = case.tensors()
    out, lse = case.native(q, k, v, sink)

    def gradients(keys: slice) -> tuple[Tensor, ...]:
        length = len(k[keys])
        lengths = (i32(0, 150), i32(0, length), 150, length, case.scale, False, OFF, sink)
        return tilewise.dense_prefill_bwd(case.d_out(), q, k[keys], v[keys], out, lse, *lengths)

    whole = gradients(slice(None))
    parts = [gradients(keys) for keys in (slice(0, 64), slice(64, 150))]
    assert torch.allclose(parts[0][3] + parts[1][3], whole[3], rtol=1e-5, atol=1e-5)
    assert (parts[0][3] - whole[3]).abs().min() > 1e-3
    dq = parts[0][0].float() + parts[1][0].float()
    assert torch.allclose(dq, whole[0].float(), rtol=2**-6, atol=2**-8)
    for which in (1, 2):
        assert_same_bits([torch.cat([part[which] for part in parts])], [whole[which]])


def test_d_sink_does_not_meet_keys_that_its_head_does_not_see() -> None:
    case = Case(((256, 256),), heads=(2, 1))
    q, k, v, _ = case.tensors()
    # Both heads visit both blocks; key 250 is seen by queries of head 1 alone.
    q2k = torch.tensor([[[1], [0]], [[0], [1]]], dtype=torch.int32)
    sink = torch.tensor([0.3, -torch.inf])
    lengths = (i32(0, 256), i32(0, 256), 256, 256, case.scale, 128, 128, False, (300, 5), sink)

    def gradients(values: Tensor) -> tuple[Tensor, ...]:
        out, lse = tilewise.block_sparse_prefill_fwd(q, k, values, q2k, *lengths)
        return tilewise.block_sparse_prefill_bwd(case.d_out(), q, k, values, out, lse, q2k, *lengths)

    broken = v.clone()
    broken[250] = torch.nan
    dq, _, _, d_sink = gradients(broken)
    expected = gradients(v)
    assert dq[:, 1].isnan().any()
    assert_same_bits([dq[:, 0], d_sink], [expected[0][:, 0], expected[3]])
    assert d_sink[0] != 0 and d_sink[1] == 0


@pytest.mark.parametrize("extreme", [float("inf"), -float("inf")])
def test_infinite_sinks(extreme: float) -> None:
    case = Case(sink=FP32)
    tensors = case.tensors()
    tensors[3] = torch.full((4,), extreme)
    tensors = training_oracle.leaves(tensors)
    out, lse = case.native(*tensors)
    found = torch.autograd.grad(out, tensors, case.d_out())
    assert (found[3] == 0).all()
    if extreme > 0:
        assert (out == 0).all() and (lse == extreme).all()
        assert all((gradient == 0).all() for gradient in found)
    else:
        plain = native_gradients(Case())
        assert_same_bits((out.detach(), lse, *found[:3]), (*plain[:2], *plain[2]))
