"""Every function against the native operator, bit for bit, and against the oracle."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import flash_mla
import oracle
import pytest
import tilewise
import torch
from compat_calls import (
    FUNCTIONS,
    SCALE,
    Kwargs,
    decode,
    dense,
    native_arguments,
    prefill,
    q_b_proj,
    sparse,
    sparse_fwd,
    wv_proj,
)
from flash_mla import fused_norm_rope_attn_rope_cast as fused
from ops_calls import GROUPS, HEADS, assert_same_bits, bf16, fp32, i32

each_call = pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, function in FUNCTIONS.items() for name in function.calls]
)
each_attention_call = pytest.mark.parametrize(
    ("kind", "name"),
    [(k, n) for k, f in FUNCTIONS.items() for n in f.calls if not f.native.startswith("permute")],
)


@each_call
def test_equals_the_native_operator(kind: str, name: str) -> None:
    result = FUNCTIONS[kind].run(name)
    assert type(result) is tuple
    assert_same_bits(result, FUNCTIONS[kind].run_native(name))


@each_attention_call
def test_equals_the_oracle(kind: str, name: str) -> None:
    function = FUNCTIONS[kind]
    found = function.run(name)
    expected = getattr(oracle, function.native)(**native_arguments(function.calls[name]))
    oracle.assert_outputs(function.native, found, expected)


# ---- arguments of another form --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "pair"),
    [(None, (-1, -1)), (0, (-1, -1)), (-3, (-1, -1)), (1, (0, 0)), (3, (2, 0)), ([2, -1], (2, -1))],
)
def test_window_forms(window: Any, pair: tuple[int, int]) -> None:
    call = dense(window_size=window, causal=pair[1] != -1)
    expected = oracle.dense_decode(**native_arguments({**call, "window_size": pair}))
    out, lse = flash_mla.flash_mla_with_kvcache(**call)
    oracle.assert_rows(out, expected.exact.out, expected.rounded.out)
    oracle.assert_logs(lse, expected.exact.lse)


def test_sparse_calls_may_spell_out_that_the_window_is_off() -> None:
    expected = flash_mla.flash_mla_with_kvcache(**sparse())
    for window in (None, 0, (-1, -1)):
        assert_same_bits(flash_mla.flash_mla_with_kvcache(**sparse(window_size=window)), expected)


def test_sparse_calls_ignore_table_and_lengths() -> None:
    expected = flash_mla.flash_mla_with_kvcache(**sparse())
    call = sparse(block_table=torch.zeros(7), cache_seqlens=i32(1))
    assert_same_bits(flash_mla.flash_mla_with_kvcache(**call), expected)


def test_a_bfloat16_cache_goes_with_either_value_of_the_flag() -> None:
    call: Kwargs = {"q": bf16(2, 1, HEADS, 576), "k_cache": bf16(3, 4, 1, 576, seed=2)}
    results = [
        flash_mla.flash_mla_with_kvcache(**sparse(**call, is_fp8_kvcache=flag)) for flag in (False, True)
    ]
    assert_same_bits(*results)


@pytest.mark.parametrize(("native", "call"), [("dense_decode", dense), ("sparse_decode", sparse)])
@pytest.mark.parametrize("wanted", [False, True])
def test_batch_invariance_reaches_the_operator(
    native: str, call: Callable[..., Kwargs], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changes no bit on the CPU, so the call itself is looked at."""
    operator, seen = getattr(tilewise, native), []

    def watched(*args: Any, **kwargs: Any) -> Any:
        seen.append(inspect.signature(operator).bind(*args, **kwargs).arguments["batch_invariant"])
        return operator(*args, **kwargs)

    monkeypatch.setattr(tilewise, native, watched)
    flash_mla.flash_mla_with_kvcache(**call(enable_batch_invariant=wanted))
    assert seen == [wanted]


def test_positional_calls() -> None:
    for function, call in (
        (flash_mla.flash_mla_with_kvcache, dense(num_splits=None, softmax_scale=SCALE, causal=True)),
        (
            flash_mla.flash_mla_with_kvcache,
            {
                **dense(num_splits=None, softmax_scale=SCALE, causal=False),
                **{k: v for k, v in sparse().items() if k not in ("indices", "tile_scheduler_metadata")},
                "indices": sparse()["indices"],
                "attn_sink": fp32(HEADS),
                "extra_k_cache": None,
                "extra_indices_in_kvcache": None,
                "topk_length": i32(3, 2),
                "extra_topk_length": None,
                "out": None,
            },
        ),
        (
            flash_mla.flash_mla_sparse_fwd,
            sparse_fwd(d_v=512, attn_sink=fp32(HEADS), topk_length=i32(5, 4, 3, 2, 1), out=None),
        ),
        (fused.prefill, prefill(d_v=512, attn_sink=fp32(HEADS), topk_length=i32(5, 4, 3, 2, 1), out=None)),
        (fused.decode, decode(d_v=512, attn_sink=fp32(HEADS), topk_length=i32(5, 4, 3))),
        (fused.permute_q_b_proj, q_b_proj()),
        (fused.permute_wv_proj, wv_proj()),
    ):
        expected = function(**call)
        fresh = {**call, "tile_scheduler_metadata": flash_mla.FlashMLASchedMeta()}
        args = [fresh[name] for name in call]
        assert_same_bits(function(*args), expected)


# ---- weights --------------------------------------------------------------------------------------------


def test_weights_are_permuted_as_the_fused_functions_read_them() -> None:
    call = q_b_proj()
    weight, scales = call["weight_and_sf"]
    moved, moved_scales = fused.permute_q_b_proj(**call)
    for head in range(HEADS):
        for channel in range(32):
            row = channel // 16 * HEADS * 16 + head * 16 + channel % 16
            assert torch.equal(moved[row].view(torch.uint8), weight[head * 32 + channel].view(torch.uint8))
            assert torch.equal(moved_scales[row], scales[head * 32 + channel])

    call = wv_proj()
    weight, scales = call["weight_and_sf"]
    moved, moved_scales = fused.permute_wv_proj(**call)
    exponents, moved_exponents = (t.view(torch.uint8).view(2, 3, 32) for t in (scales, moved_scales))
    for head in range(2):
        for group in range(16):
            at, to = head * 16 + group, group * 2 + head
            columns = weight.view(torch.uint8)[..., at * 32 : at * 32 + 32]
            assert torch.equal(moved.view(torch.uint8)[..., to * 32 : to * 32 + 32], columns)
            assert torch.equal(moved_exponents[..., to], exponents[..., at])


@pytest.mark.parametrize("pair", [tuple, list])
def test_weights_come_as_any_pair(pair: type) -> None:
    for function, call in ((fused.permute_q_b_proj, q_b_proj()), (fused.permute_wv_proj, wv_proj())):
        expected = function(**call)
        assert_same_bits(function(**{**call, "weight_and_sf": pair(call["weight_and_sf"])}), expected)


# ---- FP8 metadata ---------------------------------------------------------------------------------------


def test_dense_fp8_metadata() -> None:
    rows, splits = flash_mla.get_mla_metadata_dense_fp8(i32(7, 5, 3), 4 * GROUPS, 1)
    assert (rows.dtype, rows.shape) == (torch.int32, (1, 8))
    assert (splits.dtype, splits.shape) == (torch.int32, (4,))
    assert not rows.any()
    assert not splits.any()
