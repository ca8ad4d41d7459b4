"""torch.ops._flashmla_C.* and _flashmla_extension_C.*: FlashMLA's schemas on the native operators."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ops_calls import (
    GROUPS,
    HEADS,
    SENTINEL,
    Call,
    Guarded,
    assert_same_bits,
    bf16,
    bits,
    check_operator,
    dense_decode,
    dense_decode_fp8,
    fp32,
    fused_decode,
    fused_prefill,
    i32,
    ops,
    permute_q_b_proj,
    permute_wv_proj,
    sparse_decode,
    sparse_prefill_fwd,
)
from torch._subclasses.fake_tensor import FakeTensorMode


def flashmla_sparse_decode(out: torch.Tensor | None = None) -> tuple[Any, ...]:
    q, cache, lists, scale = sparse_decode().args
    return q, cache, lists, None, None, None, None, None, None, None, 512, scale, out


def flashmla_dense_decode(out: torch.Tensor | None = None) -> tuple[Any, ...]:
    q, cache, table, lengths, scale = dense_decode().args
    return q, cache, 512, lengths, table, scale, True, None, None, out


def flashmla_sparse_prefill(out: torch.Tensor | None = None) -> tuple[Any, ...]:
    q, kv, lists, scale = sparse_prefill_fwd().args
    return q, kv, lists, scale, 512, None, None, out


def flashmla_settings(call: Call) -> tuple[Any, ...]:
    places, table = call.args[3:5]
    return True, 1e-6, places, False, 64, table, GROUPS, 32, True, True, True


def flashmla_fused_fwd() -> tuple[Any, ...]:
    call = fused_prefill()
    return (*call.args[:3], 0.05, 512, None, None, *flashmla_settings(call))


def flashmla_fused_decode() -> tuple[Any, ...]:
    call = fused_decode()
    return (*call.args[:3], 0.05, 512, None, None, None, None, None, *flashmla_settings(call))


def flashmla_dense_fp8() -> tuple[Any, ...]:
    call = dense_decode_fp8()
    q, cache, table, lengths, scale = call.args
    metadata = (i32(0), i32(0))
    return q, cache, 512, lengths, table, scale, False, *metadata, *call.kwargs.values()


FLASHMLA: dict[str, tuple[Callable[[], tuple[Any, ...]], Call]] = {
    "_flashmla_C::sparse_decode_fwd": (flashmla_sparse_decode, sparse_decode()),
    "_flashmla_C::dense_decode_fwd": (flashmla_dense_decode, dense_decode(causal=True)),
    "_flashmla_C::sparse_prefill_fwd": (flashmla_sparse_prefill, sparse_prefill_fwd()),
    "_flashmla_C::fused_norm_rope_attn_rope_cast_fwd": (flashmla_fused_fwd, fused_prefill(q_norm_eps=1e-6)),
    "_flashmla_C::fused_norm_rope_attn_rope_cast_decode": (
        flashmla_fused_decode,
        fused_decode(q_norm_eps=1e-6),
    ),
    "_flashmla_C::permute_q_b_proj": (lambda: permute_q_b_proj().args, permute_q_b_proj()),
    "_flashmla_C::permute_wv_proj": (lambda: permute_wv_proj().args, permute_wv_proj()),
    "_flashmla_extension_C::fwd_kvcache_mla_fp8": (flashmla_dense_fp8, dense_decode_fp8()),
}
each_flashmla = pytest.mark.parametrize(("name", "args", "native"), [(k, *v) for k, v in FLASHMLA.items()])


def flashmla(name: str) -> Any:
    namespace, _, op = name.partition("::")
    return getattr(getattr(torch.ops, namespace), op).default


def tensors_of(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(t for t in result if t is not None)


@each_flashmla
def test_flashmla_operator_is_the_native_one(name: str, args: Callable[[], Any], native: Call) -> None:
    got = tensors_of(flashmla(name)(*args()))
    assert_same_bits(got, native.run()[: len(native.outputs)])


@each_flashmla
def test_opcheck_flashmla(name: str, args: Callable[[], Any], native: Call) -> None:
    # Compilation wants operators that return new tensors alone; FlashMLA's return their arguments too.
    tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
    check_operator(flashmla(name), args(), {}, test_utils=tests)


def bf16_like(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.bfloat16)


WITH_OUTPUTS: dict[str, tuple[str, tuple[Any, ...], int]] = {
    "sparse": ("_flashmla_C::sparse_decode_fwd", flashmla_sparse_decode(bf16_like(2, 1, HEADS, 512)), 12),
    "dense": ("_flashmla_C::dense_decode_fwd", flashmla_dense_decode(bf16_like(2, 3, HEADS, 512)), 9),
    "packed": ("_flashmla_C::dense_decode_fwd", flashmla_dense_decode(bf16_like(2, 1, 3 * HEADS, 512)), 9),
    "prefill": ("_flashmla_C::sparse_prefill_fwd", flashmla_sparse_prefill(bf16_like(5, HEADS, 512)), 7),
    "fused": (
        "_flashmla_C::fused_norm_rope_attn_rope_cast_fwd",
        (*flashmla_fused_fwd(), torch.empty(5, GROUPS, HEADS // GROUPS * 512, dtype=torch.float8_e4m3fn)),
        18,
    ),
    "fused decode": (
        "_flashmla_C::fused_norm_rope_attn_rope_cast_decode",
        (*flashmla_fused_decode(), torch.empty(3, GROUPS, HEADS // GROUPS * 512, dtype=torch.float8_e4m3fn)),
        21,
    ),
}


@pytest.mark.parametrize(("name", "args", "place"), WITH_OUTPUTS.values(), ids=WITH_OUTPUTS.keys())
def test_flashmla_fake_outputs_look_like_real_ones(name: str, args: tuple[Any, ...], place: int) -> None:
    real = flashmla(name)(*args)
    with FakeTensorMode() as mode:
        fake_args = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args]
        fake = flashmla(name)(*fake_args)
    assert real[0] is args[place]
    assert fake[0] is fake_args[place]

    def looks(result: Any) -> list[Any]:
        return [t if t is None else (t.dtype, tuple(t.shape), t.stride()) for t in result]

    assert looks(fake) == looks(real)


def test_flashmla_returns_what_it_was_given() -> None:
    out, metadata = torch.empty(2, 1, HEADS, 512, dtype=torch.bfloat16), i32(5)
    args = list(flashmla_sparse_decode(out))
    args[5] = metadata
    result = torch.ops._flashmla_C.sparse_decode_fwd(*args)
    assert result[0] is out
    assert result[2] is metadata
    assert result[3] is None
    assert_same_bits(result[:2], sparse_decode().run())


def test_flashmla_fused_outputs_may_be_given_alone() -> None:
    expected = torch.ops._flashmla_C.fused_norm_rope_attn_rope_cast_fwd(*flashmla_fused_fwd())
    for i, name in enumerate(("out_fp8", "out_sf")):
        guard = Guarded(expected[i], without_gaps=True)
        result = torch.ops._flashmla_C.fused_norm_rope_attn_rope_cast_fwd(
            *flashmla_fused_fwd(), **{name: guard.view}
        )
        assert result[i] is guard.view
        assert_same_bits(tuple(result), tuple(expected))
        assert guard.neighbours_untouched()


@pytest.mark.parametrize(("s_q", "h_kv"), [(3, 1), (1, 2), (3, 2)])
def test_flashmla_dense_decode_takes_the_packed_output(s_q: int, h_kv: int) -> None:
    q, cache = bf16(2, s_q, HEADS, 576), bf16(3, 4, h_kv, 576, seed=2)
    table, lengths = i32(2, 0, 1, 1).view(2, 2), i32(7, 5)
    group = HEADS // h_kv
    args = (q, cache, 512, lengths, table, 0.05, False, None, None)
    plain, lse, *_ = torch.ops._flashmla_C.dense_decode_fwd(*args)
    guard = Guarded(torch.empty(2, h_kv, s_q * group, 512, dtype=torch.bfloat16), without_gaps=True)
    packed, packed_lse, *_ = torch.ops._flashmla_C.dense_decode_fwd(*args, guard.view)
    assert packed is guard.view
    expected = plain.view(2, s_q, h_kv, group, 512).transpose(1, 2).reshape(2, h_kv, s_q * group, 512)
    assert_same_bits((packed, packed_lse), (expected, lse))
    assert guard.neighbours_untouched()


def test_flashmla_split_decode_merges_to_the_whole() -> None:
    args = flashmla_fused_decode()
    out_fp8, out_sf, lse = torch.ops._flashmla_C.fused_norm_rope_attn_rope_cast_decode(*args)
    s_q = args[0].shape[0]
    o_accum, lse_accum = torch.empty(3, s_q, HEADS, 512), torch.empty(3, s_q, HEADS)
    guards = [Guarded(t, without_gaps=True) for t in (out_fp8, out_sf)]
    result = torch.ops._flashmla_C.fused_norm_rope_attn_rope_cast_decode(
        *args, *(guard.view for guard in guards), 3, o_accum, lse_accum
    )
    assert [result[i] is guard.view for i, guard in enumerate(guards)] == [True, True]
    assert all((bits(guard.buffer) == SENTINEL).all() for guard in guards)
    merged = ops.combine_partials_fused(o_accum, lse_accum, None, True, GROUPS)
    native = fused_decode(q_norm_eps=1e-6, num_splits=3).run()
    assert_same_bits(merged, native)
    assert torch.allclose(merged[2], lse, atol=1e-4)


def test_flashmla_metadata() -> None:
    metadata, splits = torch.ops._flashmla_extension_C.get_mla_decoding_metadata_dense_fp8(i32(7, 5, 3), 4, 1)
    assert (metadata.dtype, metadata.shape) == (torch.int32, (1, 8))
    assert (splits.dtype, splits.shape) == (torch.int32, (4,))


def replaced(args: tuple[Any, ...], **changes: Any) -> tuple[Any, ...]:
    values = list(args)
    for place, value in changes.items():
        values[int(place.removeprefix("at"))] = value
    return tuple(values)


FLASHMLA_ERRORS: dict[str, tuple[str, tuple[Any, ...], str]] = {
    "cache": (
        "_flashmla_C::sparse_decode_fwd",
        replaced(flashmla_sparse_decode(), at1=fp32(3, 4, 1, 512)),
        "sparse_decode_fwd: kv must be ",
    ),
    "out": (
        "_flashmla_C::sparse_decode_fwd",
        flashmla_sparse_decode(fp32(2, 1, HEADS, 512)),
        "sparse_decode_fwd: out_ must be bfloat16 [2, 1, 4, 512], got float32 [2, 1, 4, 512]",
    ),
    "left out": (
        "_flashmla_C::sparse_decode_fwd",
        replaced(flashmla_sparse_decode(), at9=i32(1, 1)),
        "sparse_decode_fwd: extra_topk_length must be left out without extra_kv, got int32 [2]",
    ),
    "head size": (
        "_flashmla_C::sparse_decode_fwd",
        replaced(flashmla_sparse_decode(), at10=576),
        "sparse_decode_fwd: d_v must be 512, got 576",
    ),
    "dense head size": (
        "_flashmla_C::dense_decode_fwd",
        replaced(flashmla_dense_decode(), at2=256),
        "dense_decode_fwd: head_size_v must be 512, got 256",
    ),
    "dense lengths": (
        "_flashmla_C::dense_decode_fwd",
        replaced(flashmla_dense_decode(), at3=i32(1)),
        "dense_decode_fwd: seqlens_k must be int32 [2], got int32 [1]",
    ),
    "dense out": (
        "_flashmla_C::dense_decode_fwd",
        flashmla_dense_decode(bf16(2, 4, 3, 512)),
        "dense_decode_fwd: out_ must be bfloat16 [2, 3, 4, 512], got bfloat16 [2, 4, 3, 512]",
    ),
    "dense out strides": (
        "_flashmla_C::dense_decode_fwd",
        flashmla_dense_decode(bf16(2, 3, HEADS, 520)[..., :512]),
        "dense_decode_fwd: out_ must be contiguous, got shape [2, 3, 4, 512] "
        "with strides [6240, 2080, 520, 1]",
    ),
    "scale": (
        "_flashmla_C::sparse_prefill_fwd",
        replaced(flashmla_sparse_prefill(), at3=float("nan")),
        "sparse_prefill_fwd: sm_scale must be finite, got nan",
    ),
    "rope": (
        "_flashmla_C::fused_norm_rope_attn_rope_cast_fwd",
        replaced(flashmla_fused_fwd(), at10=True),
        "fused_norm_rope_attn_rope_cast_fwd: is_rope_neox_style must be False, got True",
    ),
    "scales": (
        "_flashmla_C::fused_norm_rope_attn_rope_cast_fwd",
        replaced(flashmla_fused_fwd(), at14=128),
        "fused_norm_rope_attn_rope_cast_fwd: num_per_channels must be 32, got 128",
    ),
    "groups": (
        "_flashmla_C::fused_norm_rope_attn_rope_cast_fwd",
        replaced(flashmla_fused_fwd(), at13=3),
        "fused_norm_rope_attn_rope_cast_fwd: n_wv_group must be a divisor of h_q 4, got 3",
    ),
    "norm": (
        "_flashmla_C::fused_norm_rope_attn_rope_cast_decode",
        replaced(flashmla_fused_decode(), at11=-1.0),
        "fused_norm_rope_attn_rope_cast_decode: rms_norm_eps must be finite and at least 0, got -1",
    ),
    "splits alone": (
        "_flashmla_C::fused_norm_rope_attn_rope_cast_decode",
        (*flashmla_fused_decode(), None, None, 2, None, None),
        "fused_norm_rope_attn_rope_cast_decode: mega_num_splits must be 1 without mega_o_accum, got 2",
    ),
    "one accumulator": (
        "_flashmla_C::fused_norm_rope_attn_rope_cast_decode",
        (*flashmla_fused_decode(), None, None, 2, torch.empty(2, 3, HEADS, 512), None),
        "fused_norm_rope_attn_rope_cast_decode: mega_lse_accum must be given with mega_o_accum, got nothing",
    ),
    "accumulator": (
        "_flashmla_C::fused_norm_rope_attn_rope_cast_decode",
        (*flashmla_fused_decode(), None, None, 2, torch.empty(2, 3, HEADS, 512), torch.empty(3, 3, HEADS)),
        "fused_norm_rope_attn_rope_cast_decode: mega_lse_accum must be float32 [2, 3, 4], "
        "got float32 [3, 3, 4]",
    ),
    "weights": (
        "_flashmla_C::permute_q_b_proj",
        replaced(permute_q_b_proj().args, at1=fp32(3, 2)),
        "permute_q_b_proj: scale_factors must be int32 [128, 2], got float32 [3, 2]",
    ),
    "groups of weights": (
        "_flashmla_C::permute_wv_proj",
        replaced(permute_wv_proj().args, at2=0),
        "permute_wv_proj: wv_group_size must be 1 to 2147483647, got 0",
    ),
    "descale": (
        "_flashmla_extension_C::fwd_kvcache_mla_fp8",
        replaced(flashmla_dense_fp8(), at9=None),
        "fwd_kvcache_mla_fp8: descale_q must be given where q is float8_e4m3fn, got nothing",
    ),
    "metadata": (
        "_flashmla_extension_C::get_mla_decoding_metadata_dense_fp8",
        (fp32(3), 4, 1),
        "get_mla_decoding_metadata_dense_fp8: seqlens_k must be int32 [b], got float32 [3]",
    ),
}


@pytest.mark.parametrize(("name", "args", "text"), FLASHMLA_ERRORS.values(), ids=FLASHMLA_ERRORS.keys())
def test_flashmla_errors_have_flashmla_names(name: str, args: tuple[Any, ...], text: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        flashmla(name)(*args)
    if text.endswith(" "):
        assert str(caught.value).startswith(text)
        assert "kv_cache" not in str(caught.value)
    else:
        assert str(caught.value) == text


def run_python(program: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


OTHER_LIBRARY = """
other = torch.library.Library("_flashmla_C", "DEF")
other.define("sparse_decode_fwd(Tensor q) -> Tensor")
other.impl("sparse_decode_fwd", lambda q: q + 1, "CPU")
"""


@pytest.mark.parametrize("ours_first", [False, True])
def test_another_library_may_bring_flashmlas_operators(ours_first: bool) -> None:
    imports = ["import tilewise", OTHER_LIBRARY]
    program = "\n".join(["import torch", *(imports if ours_first else reversed(imports))])
    program += "\nprint(torch.ops._flashmla_C.sparse_decode_fwd(torch.zeros(1)).item())"
    program += "\nprint(hasattr(torch.ops._flashmla_C, 'dense_decode_fwd'))"
    assert run_python(program).split() == ["1.0", "False"]
