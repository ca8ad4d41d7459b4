"""Caller-owned outputs: the same bits, the caller's own objects, nothing written around them; split mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flash_mla
import oracle
import pytest
import tilewise
import torch
from compat_calls import (
    SINK,
    Kwargs,
    decode,
    decode_extra,
    dense,
    native_arguments,
    prefill,
    sparse,
    sparse_fwd,
)
from flash_mla import fused_norm_rope_attn_rope_cast as fused
from ops_calls import GROUPS, HEADS, SENTINEL, Guarded, assert_same_bits, bits, sentinel

SINGLE: dict[str, tuple[Callable[..., Any], Callable[..., Kwargs]]] = {
    "dense": (flash_mla.flash_mla_with_kvcache, dense),
    "sparse": (flash_mla.flash_mla_with_kvcache, sparse),
    "sparse prefill": (flash_mla.flash_mla_sparse_fwd, sparse_fwd),
}
PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Kwargs]]] = {
    "prefill": (fused.prefill, prefill),
    "decode": (fused.decode, decode),
}
each_pair = pytest.mark.parametrize(("function", "call"), PAIRS.values(), ids=PAIRS.keys())


@pytest.mark.parametrize(("function", "call"), SINGLE.values(), ids=SINGLE.keys())
def test_out_is_written_and_returned(function: Callable[..., Any], call: Callable[..., Kwargs]) -> None:
    expected = function(**call())
    guard = Guarded(expected[0], without_gaps=False)
    result = function(**call(), out=guard.view)
    assert result[0] is guard.view
    assert_same_bits(result, expected)
    assert guard.neighbours_untouched()


def test_indexer_with_out() -> None:
    expected = flash_mla.flash_mla_sparse_fwd(**sparse_fwd(indexer_topk=2))
    guard = Guarded(expected[0], without_gaps=False)
    result = flash_mla.flash_mla_sparse_fwd(**sparse_fwd(indexer_topk=2), out=guard.view)
    assert result[0] is guard.view
    assert len(result) == 4
    assert_same_bits(result, expected)


@each_pair
@pytest.mark.parametrize("form", ["tuple", "list", "keywords", "out_fp8", "out_sf"])
def test_pairs_are_written_and_returned(
    function: Callable[..., Any], call: Callable[..., Kwargs], form: str
) -> None:
    expected = function(**call())
    guards = [Guarded(tensor, without_gaps=True) for tensor in expected[:2]]
    views = [guard.view for guard in guards]
    outputs: Kwargs = {
        "tuple": {"out": tuple(views)},
        "list": {"out": views},
        "keywords": {"out_fp8": views[0], "out_sf": views[1]},
        "out_fp8": {"out_fp8": views[0]},
        "out_sf": {"out_sf": views[1]},
    }[form]
    result = function(**call(), **outputs)
    assert type(result) is tuple
    assert_same_bits(result, expected)
    for i, name in enumerate(("out_fp8", "out_sf")):
        given = form not in ("out_fp8", "out_sf") or form == name
        assert (result[i] is views[i]) == given
        assert guards[i].neighbours_untouched()
        assert given or (bits(guards[i].buffer) == SENTINEL).all()


def test_the_cast_is_the_oracles_in_a_callers_pair() -> None:
    call = decode(**decode_extra(), attn_sink=SINK)
    guards = [Guarded(tensor, without_gaps=True) for tensor in fused.decode(**call)[:2]]
    out_fp8, out_sf, _lse = fused.decode(**call, out=[guard.view for guard in guards])
    oracle.assert_cast(out_fp8, out_sf, oracle.fused_decode(**native_arguments(call)))


# ---- one pair of buffers for the prefill and the decode tokens of a step ------------------------------


def shared_buffers(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """out_fp8, out_sf and the memory of out_sf, whose columns are padded to a multiple of four tokens."""
    width = HEADS // GROUPS * 512
    out_fp8 = sentinel(torch.float8_e4m3fn).expand(tokens, GROUPS, width).clone()
    padded = (tokens + 3) // 4 * 4
    memory = sentinel(torch.int32).expand(GROUPS, width // 128, padded).clone()
    return out_fp8.contiguous(), memory.permute(2, 0, 1)[:tokens], memory


@pytest.mark.parametrize(("n_prefill", "n_decode"), [(5, 3), (4, 1), (1, 4)])
def test_mixed_step_fills_one_pair(n_prefill: int, n_decode: int) -> None:
    tokens = n_prefill + n_decode
    out_fp8, out_sf, memory = shared_buffers(tokens)
    ranges = {"prefill": slice(0, n_prefill), "decode": slice(n_prefill, tokens)}
    calls = {"prefill": prefill(n_prefill), "decode": decode(n_decode)}
    expected = {name: PAIRS[name][0](**calls[name]) for name in PAIRS}

    first = fused.prefill(**calls["prefill"], out=(out_fp8[:n_prefill], out_sf[:n_prefill]))
    assert (out_fp8[n_prefill:].view(torch.uint8) == SENTINEL).all()
    assert (out_sf[n_prefill:] == sentinel(torch.int32)).all()
    second = fused.decode(**calls["decode"], out=(out_fp8[n_prefill:], out_sf[n_prefill:]))

    assert_same_bits(first, expected["prefill"])
    assert_same_bits(second, expected["decode"])
    for name, tokens_of in ranges.items():
        assert_same_bits((out_fp8[tokens_of], out_sf[tokens_of]), expected[name][:2])
    assert (memory[:, :, tokens:] == sentinel(torch.int32)).all()


# ---- split mode -----------------------------------------------------------------------------------------


def accumulators(n: int, s_q: int = 3) -> Kwargs:
    return {
        "mega_num_splits": n,
        "mega_o_accum": torch.empty(n, s_q, HEADS, 512),
        "mega_lse_accum": torch.empty(n, s_q, HEADS),
    }


@pytest.mark.parametrize("n", [1, 3])
def test_split_mode_writes_partials_and_nothing_else(n: int) -> None:
    call = decode(**decode_extra(), attn_sink=SINK, enable_q_norm=True, rms_norm_eps=1e-6)
    expected = fused.decode(**call)
    guards = [Guarded(tensor, without_gaps=True) for tensor in expected[:2]]
    parts = accumulators(n)
    result = fused.decode(**call, **parts, out=[guard.view for guard in guards])
    assert [result[i] is guard.view for i, guard in enumerate(guards)] == [True, True]
    assert all((bits(guard.buffer) == SENTINEL).all() for guard in guards)
    assert (result[2].dtype, result[2].shape) == (torch.float32, (3, HEADS))

    merged = tilewise.combine_partials_fused(
        parts["mega_o_accum"], parts["mega_lse_accum"], SINK, base2=True, n_groups=GROUPS
    )
    exact = oracle.fused_decode(**native_arguments(call))
    oracle.assert_cast(merged[0], merged[1], exact)
    oracle.assert_logs(merged[2], exact.exact.lse)


def test_split_mode_allocates_what_was_left_out() -> None:
    expected = fused.decode(**decode())
    for given in ({}, {"out_fp8": torch.empty_like(expected[0])}, {"out_sf": expected[1]}):
        result = fused.decode(**decode(), **accumulators(2), **given)
        for got, want in zip(result, expected, strict=True):
            assert (got.dtype, got.shape, got.stride()) == (want.dtype, want.shape, want.stride())


def test_split_mode_takes_a_named_record() -> None:
    call = decode(k_cache=tilewise.quantize_kv(torch.ones(12, 512).bfloat16(), "v32_nope_fp8", 4))
    parts = accumulators(2)
    fused.decode(**call, **parts, kv_format="v32_nope_fp8")
    native = native_arguments({**call, "kv_format": "v32_nope_fp8"})
    expected = tilewise.fused_decode_partials(**native, num_splits=2)
    assert_same_bits((parts["mega_o_accum"], parts["mega_lse_accum"]), expected)
