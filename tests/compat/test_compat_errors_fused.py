"""Every refusal of the fused functions and of the weights' permutations, by its whole text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from compat_calls import decode, decode_extra, prefill, q_b_proj, wv_proj
from compat_errors import Case, assert_text, with_names
from flash_mla import fused_norm_rope_attn_rope_cast as fused
from ops_calls import GROUPS, HEADS, bf16, fp8, fp32, i32, indices


def settings_refused(function: Callable[..., Any], call: Callable[..., Any]) -> dict[str, Case]:
    wrong = {
        "is_rope_neox_style": (True, False),
        "rope_dim": (32, 64),
        "num_per_channels": (128, 32),
        "use_tma_aligned_col_major_sf": (False, True),
        "round_sf": (False, True),
        "use_packed_ue8m0": (False, True),
        "d_v": (576, 512),
    }
    return {
        f"{function.__name__}, {name}": Case(
            function,
            call(**{name: value}),
            ValueError,
            f"{name} must be {expected}, got {value}",
        )
        for name, (value, expected) in wrong.items()
    }


LONE = torch.empty(5, GROUPS, HEADS // GROUPS * 512, dtype=torch.float8_e4m3fn)
OUT_SF = fused.prefill(**prefill())[1]
ACCUM = {"mega_o_accum": torch.empty(2, 3, HEADS, 512), "mega_lse_accum": torch.empty(2, 3, HEADS)}
FUSED: dict[str, Case] = {
    **settings_refused(fused.prefill, prefill),
    **settings_refused(fused.decode, decode),
    "lone out": Case(
        fused.prefill,
        prefill(out=LONE),
        TypeError,
        "out must be the pair (out_fp8, out_sf), got float8_e4m3fn [5, 2, 1024]",
    ),
    "out of one": Case(
        fused.prefill,
        prefill(out=[LONE]),
        TypeError,
        "out must be the pair (out_fp8, out_sf), got (float8_e4m3fn [5, 2, 1024])",
    ),
    "half a pair": Case(
        fused.decode,
        decode(out=(LONE[:3], None)),
        TypeError,
        "out must be the pair (out_fp8, out_sf), got (float8_e4m3fn [3, 2, 1024], nothing)",
    ),
    "other half": Case(
        fused.prefill,
        prefill(out=(None, OUT_SF)),
        TypeError,
        "out must be the pair (out_fp8, out_sf), got (nothing, int32 [5, 2, 8])",
    ),
    "out twice": Case(
        fused.prefill,
        prefill(out=(LONE, OUT_SF), out_fp8=LONE),
        ValueError,
        "out_fp8 must be left out with out, got float8_e4m3fn [5, 2, 1024]",
    ),
    "out_sf twice": Case(
        fused.decode,
        decode(out=(LONE[:3], OUT_SF[:3]), out_sf=OUT_SF),
        ValueError,
        "out_sf must be left out with out, got int32 [5, 2, 8]",
    ),
    "out_fp8": Case(
        fused.prefill,
        prefill(out=(LONE[:4], OUT_SF)),
        RuntimeError,
        "out_fp8 must be float8_e4m3fn [5, 2, 1024], got float8_e4m3fn [4, 2, 1024]",
    ),
    "out_sf": Case(
        fused.prefill,
        prefill(out=(LONE, OUT_SF.contiguous())),
        RuntimeError,
        "out_sf must be of stride(0) 1, got strides [16, 8, 1]",
    ),
    "prefill groups": Case(
        fused.prefill,
        prefill(n_wv_group=3),
        RuntimeError,
        "n_wv_group must be a divisor of h_q 4, got 3",
    ),
    "norm": Case(
        fused.decode,
        decode(enable_q_norm=True, rms_norm_eps=-1.0),
        RuntimeError,
        "rms_norm_eps must be finite and at least 0, got -1",
    ),
    "positions": Case(
        fused.prefill,
        prefill(token_positions=torch.arange(5)),
        RuntimeError,
        "token_positions must be int32 [5], got int64 [5]",
    ),
    "decode indices": Case(
        fused.decode,
        decode(indices_in_kvcache=indices(3, 1, 6, below=12)),
        RuntimeError,
        "indices_in_kvcache must be int32 [3, topk], got int32 [3, 1, 6]",
    ),
    "decode cache": Case(
        fused.decode,
        decode(kv_format="v41_fp8"),
        RuntimeError,
        "k_cache must be uint8, int8 or float8_e4m3fn [num_blocks, page, 1, 528] for record v41_fp8, "
        "got uint8 [3, 4, 1, 584]",
    ),
    "decode extra": Case(
        fused.decode,
        decode(**{**decode_extra(), "extra_indices_in_kvcache": None}),
        RuntimeError,
        "extra_indices_in_kvcache must be given with extra_k_cache, got nothing",
    ),
    "decode format": Case(
        fused.decode,
        decode(kv_format=3),
        TypeError,
        "kv_format must be a record's name or a pair of names (main, extra), got 3",
    ),
    "decode gradient": Case(
        fused.decode,
        decode(q=bf16(3, HEADS, 512).requires_grad_()),
        RuntimeError,
        "q must not require grad, the operator is not differentiable: detach() it, or call under "
        "torch.no_grad() or torch.inference_mode()",
    ),
    "no tensor": Case(
        fused.decode,
        decode(attn_sink=1.0),
        TypeError,
        "attn_sink must be a tensor or None, got 1.0",
    ),
}
SPLITS: dict[str, Case] = {
    "splits alone": Case(
        fused.decode,
        decode(mega_num_splits=2),
        ValueError,
        "mega_num_splits must be 1 without mega_o_accum, got 2",
    ),
    "o alone": Case(
        fused.decode,
        decode(mega_num_splits=2, mega_o_accum=ACCUM["mega_o_accum"]),
        ValueError,
        "mega_lse_accum must be given with mega_o_accum, got nothing",
    ),
    "lse alone": Case(
        fused.decode,
        decode(mega_num_splits=2, mega_lse_accum=ACCUM["mega_lse_accum"]),
        ValueError,
        "mega_o_accum must be given with mega_lse_accum, got nothing",
    ),
    "number": Case(
        fused.decode,
        decode(mega_num_splits=3, **ACCUM),
        RuntimeError,
        "mega_o_accum must be float32 [3, 3, 4, 512], got float32 [2, 3, 4, 512]",
    ),
    "no splits": Case(
        fused.decode,
        decode(mega_num_splits=0, **ACCUM),
        RuntimeError,
        "mega_num_splits must be 1 to 2147483647, got 0",
    ),
    "lse shape": Case(
        fused.decode,
        decode(mega_num_splits=2, **{**ACCUM, "mega_lse_accum": torch.empty(2, 3, 5)}),
        RuntimeError,
        "mega_lse_accum must be float32 [2, 3, 4], got float32 [2, 3, 5]",
    ),
    "groups": Case(
        fused.decode,
        decode(mega_num_splits=2, **ACCUM, n_wv_group=3),
        RuntimeError,
        "n_wv_group must be a divisor of h_q 4, got 3",
    ),
    "out_fp8": Case(
        fused.decode,
        decode(mega_num_splits=2, **ACCUM, out_fp8=LONE),
        ValueError,
        "out_fp8 must be float8_e4m3fn [3, 2, 1024], got float8_e4m3fn [5, 2, 1024]",
    ),
    "out_fp8 strides": Case(
        fused.decode,
        decode(mega_num_splits=2, **ACCUM, out_fp8=torch.empty(3, 4, 1024).to(torch.float8_e4m3fn)[:, ::2]),
        ValueError,
        "out_fp8 must be contiguous, got strides [4096, 2048, 1]",
    ),
    "out_sf": Case(
        fused.decode,
        decode(mega_num_splits=2, **ACCUM, out_sf=OUT_SF[:3].to(torch.float32)),
        ValueError,
        "out_sf must be int32 [3, 2, 8], got float32 [3, 2, 8]",
    ),
    **{
        f"out_sf strides {list(strides)}": Case(
            fused.decode,
            decode(mega_num_splits=2, **ACCUM, out_sf=torch.zeros(99).int().as_strided((3, 2, 8), strides)),
            ValueError,
            "out_sf must be of strides (1, at least the columns' extent, at least s_q), "
            f"got strides {list(strides)}",
        )
        for strides in ((16, 8, 1), (1, 24, 2), (1, 23, 3))
    },
}
WEIGHTS: dict[str, Case] = {
    "weight": Case(
        fused.permute_q_b_proj,
        q_b_proj(h_q=3),
        RuntimeError,
        "weight_and_sf[0] must be float8_e4m3fn [96, r], got float8_e4m3fn [128, 256]",
    ),
    "scales": Case(
        fused.permute_q_b_proj,
        q_b_proj(weight_and_sf=(fp8(128, 256), fp32(3, 2))),
        RuntimeError,
        "weight_and_sf[1] must be int32 [128, 2], got float32 [3, 2]",
    ),
    "head size": Case(
        fused.permute_q_b_proj,
        q_b_proj(d_q=8),
        RuntimeError,
        "d_q must be a positive multiple of 16, got 8",
    ),
    "no pair": Case(
        fused.permute_q_b_proj,
        q_b_proj(weight_and_sf=fp8(128, 256)),
        TypeError,
        "weight_and_sf must be the pair (weight, scales), got float8_e4m3fn [128, 256]",
    ),
    "pair of no tensors": Case(
        fused.permute_q_b_proj,
        q_b_proj(weight_and_sf=(fp8(128, 256), 1)),
        TypeError,
        "weight_and_sf must be the pair (weight, scales), got (float8_e4m3fn [128, 256], 1)",
    ),
    "group size": Case(
        fused.permute_wv_proj,
        wv_proj(wv_group_size=0),
        RuntimeError,
        "wv_group_size must be 1 to 2147483647, got 0",
    ),
    "group size of no number": Case(
        fused.permute_wv_proj,
        wv_proj(wv_group_size="2"),
        TypeError,
        "wv_group_size must be a whole number, got '2'",
    ),
    "d_o": Case(fused.permute_wv_proj, wv_proj(d_o=128), RuntimeError, "d_o must be 512, got 128"),
    "wv scales": Case(
        fused.permute_wv_proj,
        wv_proj(weight_and_sf=[fp8(2, 3, 1024), i32(1)]),
        RuntimeError,
        "weight_and_sf[1] must be int32 [2, 3, 8], got int32 [1]",
    ),
    "wv pair of one": Case(
        fused.permute_wv_proj,
        wv_proj(weight_and_sf=[fp8(2, 3, 1024)]),
        TypeError,
        "weight_and_sf must be the pair (weight, scales), got (float8_e4m3fn [2, 3, 1024])",
    ),
}
CASES = with_names(fused=FUSED, splits=SPLITS, weights=WEIGHTS)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_text(case: Case) -> None:
    assert_text(case)


def test_a_refused_call_writes_no_partial_results() -> None:
    parts = {name: torch.ones_like(tensor) for name, tensor in ACCUM.items()}
    for wrong in (decode(out_fp8=LONE), decode(topk_length=i32(1)), decode(out_sf=OUT_SF[:3].contiguous())):
        with pytest.raises((ValueError, RuntimeError)):
            fused.decode(**wrong, mega_num_splits=2, **parts)
    assert all((tensor == 1).all() for tensor in parts.values())
