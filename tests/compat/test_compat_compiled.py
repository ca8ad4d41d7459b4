"""Compiled calls without a graph break give the eager bits; threads do not disturb each other."""

from __future__ import annotations

import threading
from typing import Any

import flash_mla
import pytest
import torch
from compat_calls import Kwargs, decode, dense, meta, prefill, sparse, sparse_fwd
from flash_mla import fused_norm_rope_attn_rope_cast as fused
from ops_calls import GROUPS, HEADS, assert_same_bits, i32

Tensors = tuple[torch.Tensor, ...]


def layer(calls: dict[str, Kwargs], length: torch.Tensor, out: torch.Tensor) -> Tensors:
    """Both modes of the paged decode, the prefill and the fused functions, with work in between."""
    attended, lse = flash_mla.flash_mla_with_kvcache(**calls["sparse"], topk_length=length, out=out)
    dense_call = {**calls["dense"], "cache_seqlens": length + 2}
    dense_out, _ = flash_mla.flash_mla_with_kvcache(**dense_call, causal=True, window_size=3)
    prefill_out, max_logits, _ = flash_mla.flash_mla_sparse_fwd(**calls["sparse_fwd"])
    out_fp8, out_sf, fused_lse = fused.decode(**calls["decode"])
    values = torch.empty(5, GROUPS, HEADS // GROUPS * 512, dtype=torch.float8_e4m3fn)
    mixed = fused.prefill(**calls["prefill"], out_fp8=values)
    codes = (out_fp8.view(torch.uint8), mixed[0].view(torch.uint8))
    return attended * 2, lse, dense_out + 1, prefill_out, max_logits, *codes, out_sf, mixed[1], fused_lse


def layer_calls() -> dict[str, Kwargs]:
    return {
        "sparse": sparse(),
        "dense": dense(),
        "sparse_fwd": sparse_fwd(),
        "decode": decode(enable_q_norm=True, rms_norm_eps=1e-6),
        "prefill": prefill(),
    }


def new_out() -> torch.Tensor:
    return torch.zeros(2, 1, HEADS, 512, dtype=torch.bfloat16)


def run_layer(function: Any, calls: dict[str, Kwargs], length: torch.Tensor) -> Tensors:
    out = new_out()
    return *function(calls, length, out), out


def test_compiled_layer_gives_equal_bits() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True)
    kept, eager = layer_calls(), layer_calls()
    for length in (i32(4, 6), i32(0, 3), i32(6, 1)):
        assert_same_bits(run_layer(compiled, kept, length), run_layer(layer, eager, length))
    for name in ("sparse", "dense"):
        schedule, expected = (calls[name]["tile_scheduler_metadata"] for calls in (kept, eager))
        assert schedule.have_initialized
        assert schedule.config == expected.config
        assert torch.equal(schedule.num_splits, expected.num_splits)


def test_compiled_split_mode_gives_equal_bits() -> None:
    torch._dynamo.reset()

    def split(call: Kwargs, o_accum: torch.Tensor, lse_accum: torch.Tensor) -> torch.Tensor:
        return fused.decode(**call, mega_num_splits=2, mega_o_accum=o_accum, mega_lse_accum=lse_accum)[1]

    results = []
    for function in (split, torch.compile(split, fullgraph=True)):
        parts = (torch.empty(2, 3, HEADS, 512), torch.empty(2, 3, HEADS))
        function(decode(), *parts)
        results.append(parts)
    assert_same_bits(*results)


def test_compiled_calls_refuse_another_shape() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda call: flash_mla.flash_mla_with_kvcache(**call), backend="eager")
    call = sparse()
    compiled(call)
    call["tile_scheduler_metadata"].config.topk = 7
    with pytest.raises(ValueError, match=r"\(topk 7\), got topk 6"):
        compiled(call)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_without_gradients(mode: Any) -> None:
    expected = flash_mla.flash_mla_with_kvcache(**sparse())
    with mode():
        assert_same_bits(flash_mla.flash_mla_with_kvcache(**sparse(), out=new_out()), expected)
        call = sparse()
        call["q"].requires_grad_(mode is torch.no_grad)
        assert_same_bits(flash_mla.flash_mla_with_kvcache(**call), expected)


def test_two_threads_share_a_schedule() -> None:
    calls = [sparse(), dense(causal=True)]
    expected = [flash_mla.flash_mla_with_kvcache(**call) for call in calls]
    expected.append(fused.decode(**decode()))
    shared = [meta(), meta()]
    found: list[list[Tensors]] = [[], []]
    start = threading.Barrier(2)

    def work(place: int) -> None:
        start.wait()
        for _ in range(20):
            results = [
                flash_mla.flash_mla_with_kvcache(**{**call, "tile_scheduler_metadata": schedule})
                for call, schedule in zip(calls, shared, strict=True)
            ]
            found[place] += [*results, fused.decode(**decode())]

    threads = [threading.Thread(target=work, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for results in found:
        assert len(results) == 60
        for i, result in enumerate(results):
            assert_same_bits(result, expected[i % 3])
