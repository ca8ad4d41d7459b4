"""torch.ops._flashmla_C.dense_prefill_*: FlashMLA's schemas on the native operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops_calls import (
    HEADS,
    K_ENDS,
    Q_ENDS,
    SENTINEL,
    Guarded,
    assert_same_bits,
    backward,
    bf16,
    bits,
    check_operator,
    dense_prefill_fwd,
    fp32,
    i32,
)

FWD, BWD = "dense_prefill_fwd", "dense_prefill_bwd"
SETTINGS = {"softmax_scale": 0.07, "max_seqlen_q": 90, "max_seqlen_kv": 100, "is_varlen": True}


def flashmla(name: str) -> Any:
    return getattr(torch.ops._flashmla_C, name).default


def lse_room() -> torch.Tensor:
    """As FlashMLA allocates it: [total_q, h_q] with the tokens of a head side by side."""
    return torch.empty(HEADS, 160).t()


def forward_arguments(causal: bool, d_qk: int = 192) -> dict[str, Any]:
    q, k, v = dense_prefill_fwd(d_qk).args[:3]
    return {
        "workspace_buffer": torch.empty(7, dtype=torch.uint8),
        "q": q,
        "k": k,
        "v": v,
        "cumulative_seqlen_q": Q_ENDS,
        "cumulative_seqlen_kv": K_ENDS,
        "o": torch.empty(160, HEADS, v.shape[2], dtype=torch.bfloat16),
        "lse": lse_room(),
        "mask_mode_code": int(causal),
        **SETTINGS,
    }


def backward_arguments(causal: bool, d_qk: int = 192) -> dict[str, Any]:
    d_out, q, k, v, out, lse = backward(dense_prefill_fwd(d_qk, causal=causal)).args[:6]
    return {
        "workspace_buffer": torch.empty(0),
        "d_o": d_out,
        "q": q,
        "k": k,
        "v": v,
        "o": out,
        "lse": lse_room().copy_(lse),
        "cumulative_seqlen_q": Q_ENDS,
        "cumulative_seqlen_kv": K_ENDS,
        "dq": torch.empty_like(q),
        "dk": torch.empty_like(k),
        "dv": torch.empty_like(v),
        "mask_mode_code": int(causal),
        **SETTINGS,
    }


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("d_qk", [192, 128, 64])
def test_the_operators_are_the_native_ones(causal: bool, d_qk: int) -> None:
    call = forward_arguments(causal, d_qk)
    assert flashmla(FWD)(**call) is None
    native = dense_prefill_fwd(d_qk, causal=causal)
    assert_same_bits((call["o"], call["lse"]), native.run())
    call = backward_arguments(causal, d_qk)
    assert flashmla(BWD)(**call) is None
    expected = backward(native).run()[:3]
    assert_same_bits((call["dq"], call["dk"], call["dv"]), expected)


def test_schemas_are_flashmlas() -> None:
    """By position, as its callers pass them."""
    call = forward_arguments(True)
    names = (
        "workspace_buffer q k v cumulative_seqlen_q cumulative_seqlen_kv o lse mask_mode_code softmax_scale "
        "max_seqlen_q max_seqlen_kv is_varlen"
    )
    assert [a.name for a in flashmla(FWD)._schema.arguments] == names.split()
    flashmla(FWD)(*(call[name] for name in names.split()))
    names = (
        "workspace_buffer d_o q k v o lse cumulative_seqlen_q cumulative_seqlen_kv dq dk dv mask_mode_code "
        "softmax_scale max_seqlen_q max_seqlen_kv is_varlen"
    )
    assert [a.name for a in flashmla(BWD)._schema.arguments] == names.split()
    call = backward_arguments(True)
    flashmla(BWD)(*(call[name] for name in names.split()))


def test_workspaces_and_neighbours_are_untouched() -> None:
    workspace = torch.full((3, 5), 9.0)
    call = {**backward_arguments(True), "workspace_buffer": workspace}
    guards = {name: Guarded(call[name], without_gaps=False) for name in ("dq", "dk", "dv")}
    flashmla(BWD)(**{**call, **{name: guard.view for name, guard in guards.items()}})
    assert (workspace == 9).all()
    assert all(guard.neighbours_untouched() for guard in guards.values())
    flashmla(BWD)(**{**call, "is_varlen": False})
    assert_same_bits(tuple(guard.view for guard in guards.values()), (call["dq"], call["dk"], call["dv"]))


def test_opcheck() -> None:
    check_operator(flashmla(FWD), (), forward_arguments(True))
    check_operator(flashmla(BWD), (), backward_arguments(False))


ERRORS: dict[str, tuple[str, dict[str, Any], str]] = {
    "mask": (FWD, {"mask_mode_code": 2}, "mask_mode_code must be 0 (no mask) or 1 (causal), got 2"),
    "mask of the backward": (
        BWD,
        {"mask_mode_code": -1},
        "mask_mode_code must be 0 (no mask) or 1 (causal), got -1",
    ),
    "query lengths": (
        FWD,
        {"cumulative_seqlen_q": fp32(3)},
        "cumulative_seqlen_q must be int32 [b + 1], got float32 [3]",
    ),
    "key lengths": (
        BWD,
        {"cumulative_seqlen_kv": i32(0)},
        "cumulative_seqlen_kv must be int32 [3], got int32 [1]",
    ),
    "longest": (FWD, {"max_seqlen_kv": -1}, "max_seqlen_kv must be 0 to 2147483647, got -1"),
    "o": (
        FWD,
        {"o": bf16(160, HEADS, 192)},
        "o must be bfloat16 [160, 4, 128], got bfloat16 [160, 4, 192]",
    ),
    "o of the backward": (
        BWD,
        {"o": bf16(160, HEADS, 192)},
        "o must be bfloat16 [160, 4, 128], got bfloat16 [160, 4, 192]",
    ),
    "d_o": (
        BWD,
        {"d_o": fp32(160, HEADS, 128)},
        "d_o must be bfloat16 [160, 4, 128], got float32 [160, 4, 128]",
    ),
    "lse": (FWD, {"lse": fp32(HEADS, 160)}, "lse must be float32 [160, 4], got float32 [4, 160]"),
    "dk": (
        BWD,
        {"dk": bf16(190, HEADS, 192)},
        "dk must be bfloat16 [190, 2, 192], got bfloat16 [190, 4, 192]",
    ),
    "scale": (FWD, {"softmax_scale": float("nan")}, "softmax_scale must be finite, got nan"),
}


@pytest.mark.parametrize(("name", "changes", "text"), ERRORS.values(), ids=ERRORS.keys())
def test_errors_have_flashmlas_names(name: str, changes: dict[str, Any], text: str) -> None:
    call = {**(forward_arguments(True) if name == FWD else backward_arguments(True)), **changes}
    outputs = [key for key in ("o", "lse", "dq", "dk", "dv") if name == BWD or key in ("o", "lse")]
    guards = {
        key: Guarded(call[key], without_gaps=True)
        for key in outputs
        if key not in changes and (name == FWD or key.startswith("d"))
    }
    with pytest.raises(RuntimeError) as caught:
        flashmla(name)(**{**call, **{key: guard.view for key, guard in guards.items()}})
    assert str(caught.value) == f"{name}: {text}"
    assert all((bits(guard.buffer) == SENTINEL).all() for guard in guards.values())
