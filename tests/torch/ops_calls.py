"""Small calls of every operator in torch.ops.tilewise, and what their tests share."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from unittest import mock

import pytest
import tilewise
import torch
from tilewise import _ops

ops = torch.ops.tilewise
HEADS, TOPK, GROUPS, MAX_POS = 4, 6, 2, 16
# Operators that torch does not differentiate, beside those of the same names that it does.
NO_GRAD = {
    f"{name}_no_grad" for name in ("block_sparse_prefill_fwd", "dense_prefill_fwd", "sparse_prefill_fwd")
}


def as_tuple(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


class Call(NamedTuple):
    """A call of a functional operator, and which of its outputs the overload `out` wants without gaps."""

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[str, ...]
    without_gaps: tuple[str, ...] = ()

    @property
    def functional(self) -> Callable[..., Any]:
        return getattr(ops, self.op).default

    @property
    def out(self) -> Callable[..., None]:
        return getattr(ops, self.op).out

    def run(self) -> tuple[torch.Tensor, ...]:
        return as_tuple(self.functional(*self.args, **self.kwargs))

    def run_native(self, **outputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The call by the function of the package, with outputs of the caller's."""
        return as_tuple(getattr(tilewise, self.op)(*self.args, **self.kwargs, **outputs))

    def changed(self, **changes: Any) -> Callable[[], Any]:
        """The package's function with some arguments replaced, or outputs given, by name."""
        names = [argument.name for argument in self.functional._schema.arguments]
        arguments = {**dict(zip(names, self.args, strict=False)), **self.kwargs, **changes}
        return lambda: getattr(tilewise, self.op)(**arguments)


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def bf16(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed)).to(torch.bfloat16)


def fp32(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed))


def fp8(*shape: int, seed: int = 1) -> torch.Tensor:
    return fp32(*shape, seed=seed).to(torch.float8_e4m3fn)


def indices(*shape: int, below: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(-1, below, shape, generator=generator(seed), dtype=torch.int32)


def i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def pages(record: str, n: int = 12, page: int = 4, seed: int = 1) -> torch.Tensor:
    d = _ops.record_dim(record) or 576
    return ops.quantize_kv(bf16(n, d, seed=seed), record, page)


def dense_decode(**kwargs: Any) -> Call:
    table = i32(2, 0, 1, 1).view(2, 2)
    args = (bf16(2, 3, HEADS, 576), bf16(3, 4, 1, 576, seed=2), table, i32(7, 5), 0.05)
    return Call("dense_decode", args, kwargs, ("out", "lse"))


def dense_decode_fp8() -> Call:
    table = i32(2, 0, 1, 1).view(2, 2)
    scales = {"descale_q": torch.tensor([0.5]), "descale_k": torch.tensor([2.0])}
    args = (fp8(2, 3, HEADS, 576), fp8(3, 4, 1, 576, seed=2), table, i32(7, 5), 0.05)
    return Call("dense_decode", args, scales, ("out", "lse"))


def sparse_decode(**kwargs: Any) -> Call:
    args = (bf16(2, 1, HEADS, 512), pages("v4_fp8"), indices(2, 1, TOPK, below=12), 0.05)
    return Call("sparse_decode", args, kwargs, ("out", "lse"))


def sparse_decode_extra() -> Call:
    extra = {
        "extra_cache": pages("v4_fp8", n=9, page=2, seed=3),
        "extra_indices": indices(2, 1, 3, below=9, seed=4),
        "extra_topk_length": i32(3, 2),
    }
    return sparse_decode(
        record="v4_fp8", topk_length=i32(4, 9), extra_record="v4_fp8", attn_sink=fp32(HEADS), **extra
    )


def sparse_prefill_fwd(**kwargs: Any) -> Call:
    args = (bf16(5, HEADS, 576), bf16(9, 1, 576, seed=2), indices(5, 1, TOPK, below=9), 0.05)
    names = ("out", "max_logits", "lse", "lse_indexer")
    return Call("sparse_prefill_fwd", args, kwargs, names if kwargs.get("indexer_topk") else names[:3])


# Two sequences of different lengths; the second one's keys reach further back than its queries.
Q_ENDS, K_ENDS = i32(0, 90, 160), i32(0, 90, 190)
LENGTHS = (Q_ENDS, K_ENDS, 90, 100, 0.07)


def varlen_tensors(d_qk: int = 128, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, ...]:
    """q, k and v with two query heads a KV head."""
    shapes = [(160, HEADS, d_qk), (190, HEADS // 2, d_qk), (190, HEADS // 2, min(d_qk, 128))]
    return tuple(fp32(*shape, seed=i).to(dtype) for i, shape in enumerate(shapes))


def selection(*heads: int) -> torch.Tensor:
    """Key blocks of 64 of five query blocks of 64, of which three belong to the first sequence."""
    return torch.randint(-1, 3, (*heads, 5, 3), generator=generator(3), dtype=torch.int32)


def dense_prefill_fwd(d_qk: int = 128, dtype: torch.dtype = torch.bfloat16, **kwargs: Any) -> Call:
    args = (*varlen_tensors(d_qk, dtype), *LENGTHS)
    return Call("dense_prefill_fwd", args, kwargs, ("out", "lse"))


def block_sparse_prefill_fwd(q2k: torch.Tensor | None, **kwargs: Any) -> Call:
    args = (*varlen_tensors(), q2k, *LENGTHS)
    return Call("block_sparse_prefill_fwd", args, {"q_block": 64, "kv_block": 64, **kwargs}, ("out", "lse"))


def token_backward(call: Call, **kwargs: Any) -> Call:
    """The call of sparse_prefill_bwd for that of sparse_prefill_fwd."""
    q, kv, lists, scale = call.args
    out, _, lse, _ = call.run()
    options = {name: value for name, value in call.kwargs.items() if name in ("topk_length", "sink_bias")}
    args = (bf16(*out.shape, seed=9), q, kv, out, lse, lists, scale)
    more = ("d_sink",) * ("sink_bias" in options) + ("kl_target_out",) * kwargs.get("kl_target", False)
    return Call("sparse_prefill_bwd", args, {**options, **kwargs}, ("dq", "dkv", *more))


def sparse_prefill_bwd(sink_bias: torch.Tensor | None = None, **kwargs: Any) -> Call:
    options = {} if sink_bias is None else {"sink_bias": sink_bias}
    return token_backward(sparse_prefill_fwd(topk_length=i32(2, 6, 0, 9, 5), **options), **kwargs)


def backward(call: Call, **kwargs: Any) -> Call:
    """The call of the backward operator for that of the forward one."""
    q, k, v, *others = call.args
    out, lse = call.run()[:2]
    outputs = ("dq", "dk", "dv", "d_sink") if "sink_bias" in call.kwargs else ("dq", "dk", "dv")
    d_out = fp32(*out.shape, seed=9).to(out.dtype)
    op = call.op.replace("_fwd", "_bwd")
    return Call(op, (d_out, q, k, v, out, lse, *others), {**call.kwargs, **kwargs}, outputs)


def expand_block_selection(*heads: int) -> Call:
    return Call("expand_block_selection", (selection(*heads), 3), {}, ("out",))


def fused(op: str, keys: torch.Tensor, lists: torch.Tensor, outputs: tuple[str, ...], **kwargs: Any) -> Call:
    s_q = lists.shape[0]
    places = torch.arange(s_q, dtype=torch.int32)
    args = (bf16(s_q, HEADS, 512), keys, lists, places, fp32(MAX_POS, 64, seed=5), 0.05, GROUPS)
    return Call(op, args, kwargs, outputs, ("out_fp8", "out_sf", "o_accum", "lse_accum"))


def fused_prefill(**kwargs: Any) -> Call:
    outputs = ("out_fp8", "out_sf", "max_logits", "lse")
    keys, lists = bf16(9, 1, 512, seed=2), indices(5, 1, TOPK, below=9)
    return fused("fused_prefill", keys, lists, outputs, **kwargs)


def fused_decode(**kwargs: Any) -> Call:
    outputs = ("out_fp8", "out_sf", "lse")
    return fused("fused_decode", pages("v4_fp8"), indices(3, TOPK, below=12), outputs, **kwargs)


def fused_decode_partials(**kwargs: Any) -> Call:
    outputs = ("o_accum", "lse_accum")
    return fused("fused_decode_partials", pages("v4_fp8"), indices(3, TOPK, below=12), outputs, **kwargs)


def combine_partials(dtype: torch.dtype = torch.float32, **kwargs: Any) -> Call:
    args = (fp32(3, 5, HEADS, 64).to(dtype), fp32(3, 5, HEADS, seed=2))
    return Call("combine_partials", args, kwargs, ("out", "lse"))


def combine_partials_fused(**kwargs: Any) -> Call:
    args = (fp32(3, 5, HEADS, 512), fp32(3, 5, HEADS, seed=2))
    kwargs = {"n_groups": GROUPS, **kwargs}
    return Call("combine_partials_fused", args, kwargs, ("out_fp8", "out_sf", "lse"), ("out_fp8", "out_sf"))


def quantize_kv(record: str) -> Call:
    d = _ops.record_dim(record) or 576
    return Call("quantize_kv", (bf16(10, d), record, 4), {}, ("pages",), ("pages",))


def dequantize_kv(record: str) -> Call:
    return Call("dequantize_kv", (pages(record), record), {}, ("x",))


def permute_q_b_proj() -> Call:
    rows, columns = HEADS * 32, 256
    scales = torch.arange(rows * 2, dtype=torch.int32).view(2, rows).t()
    outputs = ("weight_out", "scales_out")
    return Call("permute_q_b_proj", (fp8(rows, columns), scales, HEADS, 32), {}, outputs, outputs)


def permute_wv_proj() -> Call:
    scales = torch.arange(2 * 3 * 8, dtype=torch.int32).view(2, 3, 8)
    outputs = ("weight_out", "scales_out")
    return Call("permute_wv_proj", (fp8(2, 3, 1024), scales, 2, 512), {}, outputs, outputs)


SERVING_CALLS: dict[str, Call] = {
    "dense_decode": dense_decode(),
    "dense_decode, all options": dense_decode(
        causal=True, window=[2, 0], attn_sink=fp32(HEADS), batch_invariant=True
    ),
    "dense_decode, float8": dense_decode_fp8(),
    "sparse_decode": sparse_decode(),
    "sparse_decode, extra cache": sparse_decode_extra(),
    "sparse_prefill_fwd": sparse_prefill_fwd(),
    "sparse_prefill_fwd, indexer and sink": sparse_prefill_fwd(indexer_topk=3, attn_sink=fp32(HEADS)),
    "sparse_prefill_fwd, bias and lengths": sparse_prefill_fwd(
        sink_bias=bf16(HEADS), topk_length=i32(0, 1, 3, 9, -1)
    ),
    "fused_prefill": fused_prefill(),
    "fused_prefill, norm and sink": fused_prefill(q_norm_eps=1e-6, attn_sink=fp32(HEADS)),
    "fused_decode": fused_decode(),
    "fused_decode, splits": fused_decode(num_splits=3, attn_sink=fp32(HEADS)),
    "fused_decode_partials": fused_decode_partials(),
    "fused_decode_partials, splits": fused_decode_partials(num_splits=3, record="v4_fp8"),
    "combine_partials": combine_partials(),
    "combine_partials, bfloat16 base 2": combine_partials(torch.bfloat16, base2=True, attn_sink=fp32(HEADS)),
    "combine_partials_fused": combine_partials_fused(),
    **{f"quantize_kv, {record}": quantize_kv(record) for record in _ops.record_names()},
    **{f"dequantize_kv, {record}": dequantize_kv(record) for record in _ops.record_names()},
    "permute_q_b_proj": permute_q_b_proj(),
    "permute_wv_proj": permute_wv_proj(),
}
# Operators without GPU kernels.
TRAINING_CALLS: dict[str, Call] = {
    "sparse_prefill_bwd": sparse_prefill_bwd(),
    "sparse_prefill_bwd, sink": sparse_prefill_bwd(bf16(HEADS)),
    "sparse_prefill_bwd, all options": sparse_prefill_bwd(fp32(HEADS), kl_target=True, deterministic=False),
    "dense_prefill_fwd": dense_prefill_fwd(),
    "dense_prefill_fwd, all options": dense_prefill_fwd(
        192, torch.float16, causal=True, window=[30, 0], sink_bias=fp32(HEADS)
    ),
    "dense_prefill_bwd": backward(dense_prefill_fwd(64)),
    "dense_prefill_bwd, all options": backward(
        dense_prefill_fwd(causal=True, window=[30, 0], sink_bias=bf16(HEADS)), deterministic=False
    ),
    "block_sparse_prefill_fwd": block_sparse_prefill_fwd(selection()),
    "block_sparse_prefill_fwd, per head": block_sparse_prefill_fwd(
        selection(HEADS), causal=False, window=[40, 3], sink_bias=bf16(HEADS)
    ),
    "block_sparse_prefill_bwd": backward(block_sparse_prefill_fwd(selection(), sink_bias=fp32(HEADS))),
    "block_sparse_prefill_bwd, no selection": backward(block_sparse_prefill_fwd(None)),
    "expand_block_selection": expand_block_selection(),
    "expand_block_selection, per head": expand_block_selection(HEADS),
}
CALLS = SERVING_CALLS | TRAINING_CALLS
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
each_serving_call = pytest.mark.parametrize("call", SERVING_CALLS.values(), ids=SERVING_CALLS.keys())


def kernel_names(op: str) -> list[str]:
    """The rows of an operator's kernel table, as the built program prints it."""
    command = [os.environ["TILEWISE_PROGRAM"], "info", "--explain", op]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [line.split()[0] for line in table.splitlines() if line.startswith("  ")]


class ProjectionLayer(torch.nn.Module):
    """The projections around a fused decode step; what happens in between, a test says in forward()."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = torch.nn.Linear(64, HEADS * 512, bias=False, dtype=torch.bfloat16)
        self.kv_proj = torch.nn.Linear(64, 512, bias=False, dtype=torch.bfloat16)
        for i, weight in enumerate(self.parameters()):
            weight.data = bf16(*weight.shape, seed=i) / 8


def layer_inputs(s_q: int = 3) -> tuple[torch.Tensor, ...]:
    """x, cache, lists, places and the table of cosines and sines."""
    places = torch.arange(s_q, dtype=torch.int32)
    return bf16(s_q, 64), pages("v4_fp8"), indices(s_q, TOPK, below=12), places, fp32(MAX_POS, 64, seed=5)


# A byte that no kernel here writes by chance over whole buffers.
SENTINEL = 0xA5


def sentinel(dtype: torch.dtype) -> torch.Tensor:
    return torch.full((dtype.itemsize,), SENTINEL, dtype=torch.uint8).view(dtype)[0]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


def assert_same_bits(got: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]) -> None:
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert (one.dtype, one.shape, one.device) == (other.dtype, other.shape, other.device)
        assert torch.equal(bits(one), bits(other))


class Guarded:
    """A view into a larger buffer of sentinels, and whether the rest of the buffer is untouched."""

    def __init__(self, like: torch.Tensor, without_gaps: bool) -> None:
        self.device = like.device
        if without_gaps:
            # Strides as they are, with room in front and behind.
            storage = 1 + sum((n - 1) * s for n, s in zip(like.shape, like.stride(), strict=True))
            self.buffer = self._sentinels((storage + 128,), like.dtype)
            self.view = self.buffer.as_strided(like.shape, like.stride(), 64)
        else:
            pads = [1] * (like.dim() - 1) + [16]
            self.buffer = self._sentinels(
                [n + 2 * p for n, p in zip(like.shape, pads, strict=True)], like.dtype
            )
            self.view = self.buffer[tuple(slice(p, p + n) for n, p in zip(like.shape, pads, strict=True))]

    def _sentinels(self, shape: Any, dtype: torch.dtype) -> torch.Tensor:
        one = sentinel(dtype).to(self.device)
        return one.expand(tuple(shape)).clone(memory_format=torch.contiguous_format)

    def neighbours_untouched(self) -> bool:
        rest = self.buffer.clone()
        same_place = rest.as_strided(self.view.shape, self.view.stride(), self.view.storage_offset())
        same_place.copy_(sentinel(rest.dtype))
        return bool((rest.view(torch.uint8) == SENTINEL).all())


def guarded_outputs(call: Call) -> dict[str, Guarded]:
    return {
        name: Guarded(value, name in call.without_gaps)
        for name, value in zip(call.outputs, call.run(), strict=False)
    }


def nothing_written(guards: Iterable[Guarded]) -> bool:
    return all(bool((bits(guard.buffer) == SENTINEL).all()) for guard in guards)


_allclose = torch.allclose


def _allclose_or_equal(one: torch.Tensor, other: torch.Tensor, **kwargs: Any) -> bool:
    if one.dtype == other.dtype == torch.float8_e4m3fn:
        return torch.equal(bits(one), bits(other))
    return _allclose(one, other, **kwargs)


def check_operator(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], **options: Any) -> None:
    """torch.library.opcheck, which compares arguments before and after with allclose; float8 has none."""
    with mock.patch.object(torch, "allclose", _allclose_or_equal):
        results = torch.library.opcheck(operator, args, kwargs, **options)
    assert results
    assert set(results.values()) == {"SUCCESS"}
