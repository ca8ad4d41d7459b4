"""tilewise.* from several Python threads, compiled, exported, under inference_mode, and on empty tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import tilewise
import torch
from ops_calls import (
    CALLS,
    GROUPS,
    HEADS,
    MAX_POS,
    TOPK,
    Call,
    ProjectionLayer,
    assert_same_bits,
    bf16,
    bits,
    each_call,
    fp32,
    guarded_outputs,
    i32,
    indices,
    layer_inputs,
    pages,
    sparse_decode,
)

INF = float("inf")


# ---- threads ------------------------------------------------------------------------------------------


def test_two_python_threads_at_once_give_the_same_bits() -> None:
    calls = list(CALLS.values())
    expected = [call.run_native() for call in calls]
    failures: list[str] = []
    start = threading.Barrier(2)

    def work(offset: int) -> None:
        start.wait()
        for i in range(3 * len(calls)):
            at = (i + offset) % len(calls)
            call = calls[at]
            outputs = {name: guard.view for name, guard in guarded_outputs(call).items()} if i % 2 else {}
            try:
                assert_same_bits(call.run_native(**outputs), expected[at])
            except Exception as error:
                failures.append(f"{call.op}: {error}")

    threads = [threading.Thread(target=work, args=(offset,)) for offset in (0, len(calls) // 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_threads_are_set_for_the_package() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert tilewise.get_num_threads() == 3
        tilewise.set_num_threads(2)
        assert tilewise.get_num_threads() == 2
    finally:
        tilewise.set_num_threads(0)
        torch.set_num_threads(before)
    assert tilewise.get_num_threads() == before


# ---- modes --------------------------------------------------------------------------------------------


@each_call
def test_inference_mode(call: Call) -> None:
    expected = call.run_native()
    with torch.inference_mode():
        results = call.run_native()
        assert all(t.is_inference() for t in results)
        assert_same_bits(results, expected)
        made_here = {name: guard.view for name, guard in guarded_outputs(call).items()}
        assert_same_bits(call.run_native(**made_here), expected)
    made_outside = {name: guard.view for name, guard in guarded_outputs(call).items()}
    with torch.inference_mode():
        assert_same_bits(call.run_native(**made_outside), expected)


# ---- torch.compile ------------------------------------------------------------------------------------


class Layer(ProjectionLayer):
    """A decode step that appends to its cache, with and without given outputs."""

    def forward(
        self,
        x: torch.Tensor,
        cache: torch.Tensor,
        lists: torch.Tensor,
        places: torch.Tensor,
        table: torch.Tensor,
        out_fp8: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        tilewise.append_kv(self.kv_proj(x), cache, places, "v4_fp8")
        q = self.q_proj(x).view(-1, HEADS, 512)
        given = {"out_fp8": out_fp8}
        codes, scales, lse = tilewise.fused_decode(
            q, cache, lists, places, table, 0.05, GROUPS, 1e-6, **given
        )
        out, sparse_lse = tilewise.sparse_decode(q[:, None], cache, lists[:, None], 0.05, record="v4_fp8")
        room = torch.empty_like(out)
        tilewise.sparse_decode(q[:, None], cache, lists[:, None], 0.1, out=room)
        rows = tilewise.dequantize_kv(cache, "v4_fp8")
        dense, *logs = tilewise.sparse_prefill_fwd(q, rows[:, None], lists[:, None], 0.05, indexer_topk=2)
        parts = torch.stack([out[:, 0], dense])
        merged, merged_lse = tilewise.combine_partials(parts, torch.stack([sparse_lse[:, :, 0], lse]))
        return codes.view(torch.uint8), scales, lse, out * 2, room + 1, merged, merged_lse, *logs


def inputs_of(s_q: int = 3) -> tuple[torch.Tensor, ...]:
    out_fp8 = torch.zeros(s_q, GROUPS, HEADS // GROUPS * 512).to(torch.float8_e4m3fn)
    return *layer_inputs(s_q), out_fp8


def run_layer(layer: Callable[..., Any], s_q: int = 3) -> tuple[torch.Tensor, ...]:
    """The layer's outputs and the tensors that it has written."""
    inputs = inputs_of(s_q)
    return *layer(*inputs), inputs[1], inputs[5]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_compiled_layer_gives_equal_bits(mode: Any) -> None:
    torch._dynamo.reset()
    layer = Layer()
    compiled = torch.compile(layer, fullgraph=True)
    with mode():
        assert_same_bits(run_layer(compiled), run_layer(layer))


def test_compiled_layer_with_changing_sizes_gives_equal_bits() -> None:
    torch._dynamo.reset()
    layer = Layer()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for s_q in (3, 5, 2):
            assert_same_bits(run_layer(compiled, s_q), run_layer(layer, s_q))


def test_compiled_layer_with_gradients_on() -> None:
    torch._dynamo.reset()
    layer = Layer().requires_grad_(False)
    compiled = torch.compile(layer, fullgraph=True)
    assert_same_bits(run_layer(compiled), run_layer(layer))


def test_compiled_layer_refuses_tensors_that_require_grad() -> None:
    torch._dynamo.reset()
    layer = Layer()
    with pytest.raises(RuntimeError, match=r"^append_kv: kv must not require grad"):
        run_layer(layer)
    with pytest.raises(RuntimeError, match=r"append_kv: kv must not require grad"):
        run_layer(torch.compile(layer))


def test_exported_layer_gives_equal_bits() -> None:
    layer = Layer()
    with torch.no_grad():
        program = torch.export.export(layer, inputs_of())
        assert_same_bits(run_layer(program.module()), run_layer(layer))
    called = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    expected = {"append_kv.default", "fused_decode.out", "sparse_decode.default", "sparse_decode.out"}
    assert {f"tilewise.{name}" for name in expected} <= called


# ---- nothing to do ------------------------------------------------------------------------------------


def places_and_table(s_q: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(s_q, dtype=torch.int32), fp32(MAX_POS, 64, seed=5)


def no_int32(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.int32)


EMPTY: dict[str, Callable[[], Any]] = {
    "dense_decode, b": lambda: tilewise.dense_decode(
        bf16(0, 2, HEADS, 576), bf16(3, 4, 1, 576), no_int32(0, 2), no_int32(0), 0.05
    ),
    "dense_decode, s_q": lambda: tilewise.dense_decode(
        bf16(2, 0, HEADS, 576), bf16(3, 4, 1, 576), no_int32(2, 2), i32(3, 4), 0.05
    ),
    "sparse_decode, b": lambda: tilewise.sparse_decode(
        bf16(0, 1, HEADS, 512), pages("v4_fp8"), no_int32(0, 1, TOPK), 0.05
    ),
    "sparse_prefill_fwd, s_q": lambda: tilewise.sparse_prefill_fwd(
        bf16(0, HEADS, 576), bf16(9, 1, 576), no_int32(0, 1, TOPK), 0.05, indexer_topk=2
    ),
    "fused_prefill, s_q": lambda: tilewise.fused_prefill(
        bf16(0, HEADS, 512), bf16(9, 1, 512), no_int32(0, 1, TOPK), *places_and_table(0), 0.05, GROUPS
    ),
    "fused_decode, s_q": lambda: tilewise.fused_decode(
        bf16(0, HEADS, 512), pages("v4_fp8"), no_int32(0, TOPK), *places_and_table(0), 0.05, GROUPS
    ),
    "combine_partials, s_q": lambda: tilewise.combine_partials(fp32(2, 0, HEADS, 64), fp32(2, 0, HEADS)),
    "quantize_kv, n": lambda: tilewise.quantize_kv(bf16(0, 512), "v4_fp8", 4),
    "dequantize_kv, num_blocks": lambda: tilewise.dequantize_kv(pages("v4_fp8")[:0], "v4_fp8"),
}


@pytest.mark.parametrize("call", EMPTY.values(), ids=EMPTY.keys())
def test_no_rows(call: Callable[[], Any]) -> None:
    results = call()
    results = results if isinstance(results, tuple) else (results,)
    assert all(t.numel() == 0 for t in results)


def test_appending_nothing() -> None:
    cache = pages("v4_fp8")
    before = cache.clone()
    tilewise.append_kv(bf16(0, 512), cache, no_int32(0))
    assert torch.equal(bits(cache), bits(before))


LONELY: dict[str, Callable[[], Any]] = {
    "dense_decode": lambda: tilewise.dense_decode(
        bf16(2, 3, HEADS, 576), bf16(3, 4, 1, 576), no_int32(2, 0), i32(3, 4), 0.05
    ),
    "sparse_decode": lambda: tilewise.sparse_decode(
        bf16(2, 1, HEADS, 512), pages("v4_fp8"), no_int32(2, 1, 0), 0.05, attn_sink=fp32(HEADS)
    ),
    "sparse_prefill_fwd": lambda: tilewise.sparse_prefill_fwd(
        bf16(5, HEADS, 576), bf16(9, 1, 576), no_int32(5, 1, 0), 0.05
    ),
    "sparse_prefill_fwd, no keys": lambda: tilewise.sparse_prefill_fwd(
        bf16(5, HEADS, 576), bf16(0, 1, 576), indices(5, 1, TOPK, below=9), 0.05
    ),
    "combine_partials": lambda: tilewise.combine_partials(
        fp32(2, 3, HEADS, 64), torch.full((2, 3, HEADS), -INF)
    ),
}


@pytest.mark.parametrize("call", LONELY.values(), ids=LONELY.keys())
def test_no_keys(call: Callable[[], Any]) -> None:
    out, *logs = call()
    assert (bits(out) == 0).all()
    assert (logs[-1] == INF).all()
    assert len(logs) == 1 or (logs[0] == -INF).all()


@pytest.mark.parametrize("topk", [0, 5])
def test_no_keys_fused(topk: int) -> None:
    nothing = torch.full((3, topk), -1, dtype=torch.int32)
    ends = (*places_and_table(3), 0.05, GROUPS)
    q = bf16(3, HEADS, 512)
    prefill = tilewise.fused_prefill(q, bf16(9, 1, 512), nothing[:, None], *ends)
    decode = tilewise.fused_decode(q, pages("v4_fp8"), nothing, *ends)
    for out_fp8, out_sf, *logs in (prefill, decode):
        assert (bits(out_fp8) == 0).all()
        assert (bits(out_sf) == 105).all()
        assert (logs[-1] == INF).all()
    assert (prefill[2] == -INF).all()


def test_no_request_beside_others() -> None:
    """Requests of length 0 change nothing for the others."""
    call = sparse_decode()
    full = call.run_native()
    q, cache, lists, scale = call.args
    some = tilewise.sparse_decode(q, cache, lists, scale, topk_length=i32(0, TOPK))
    assert_same_bits((some[0][1], some[1][1]), (full[0][1], full[1][1]))
    assert (some[0][0] == 0).all() and (some[1][0] == INF).all()
