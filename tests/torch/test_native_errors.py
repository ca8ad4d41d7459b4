"""Errors of tilewise.*: the whole texts, their types, and tensors that require grad."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import ops_calls
import pytest
import tilewise
import torch
from ops_calls import GROUPS, HEADS, TOPK, Call, bf16, each_call, fp32, i32, pages
from tilewise import _ops
from training_errors import TRAINING_ERRORS

FOUND_BY_BYTES = ", ".join(
    f"{name} {_ops.record_bytes(name, 512)}" for name in ("v4_fp8", "v41_fp8", "v41_fp4", "v41_main_fp4")
)
V4_BYTES, V32_BYTES = _ops.record_bytes("v4_fp8", 512), _ops.record_bytes("v32_fp8", 576)
RECORDS = ", ".join(_ops.record_names()[:-1])


def apart(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with gaps inside the last dimension."""
    return tensor.repeat_interleave(2, -1)[..., ::2]


def misplaced(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, two bytes behind a multiple of 16."""
    memory = torch.empty(tensor.numel() + 16, dtype=tensor.dtype)
    memory = memory[-(memory.data_ptr() // tensor.element_size()) % 16 :]
    return memory[1 : 1 + tensor.numel()].view(tensor.shape).copy_(tensor)


def append_kv(**changes: Any) -> Callable[[], Any]:
    arguments = {"kv": bf16(3, 512), "cache": pages("v4_fp8"), "slots": i32(0, 1, 2), **changes}
    return lambda: tilewise.append_kv(**arguments)


dense, sparse, prefill = ops_calls.dense_decode(), ops_calls.sparse_decode(), ops_calls.sparse_prefill_fwd()
fused_prefill, fused_decode = ops_calls.fused_prefill(), ops_calls.fused_decode()
partials, merge, merge_fused = (
    ops_calls.fused_decode_partials(),
    ops_calls.combine_partials(),
    ops_calls.combine_partials_fused(),
)
quantize, dequantize = ops_calls.quantize_kv("v4_fp8"), ops_calls.dequantize_kv("v4_fp8")
q_b_proj, wv_proj = ops_calls.permute_q_b_proj(), ops_calls.permute_wv_proj()

ERRORS: list[tuple[Callable[[], Any], str]] = [
    (
        dense.changed(q=fp32(2, 3, HEADS, 576)),
        "dense_decode: q must be bfloat16, float16 or float8_e4m3fn [b, s_q, h_q, 576 or 512], got "
        "float32 [2, 3, 4, 576]",
    ),
    (dense.changed(cache_seqlens=i32(1)), "dense_decode: cache_seqlens must be int32 [2], got int32 [1]"),
    (
        dense.changed(q=apart(dense.args[0])),
        "dense_decode: q must be contiguous in its last dimension, got stride(3) 2",
    ),
    (
        dense.changed(q=misplaced(dense.args[0])),
        "dense_decode: q must be memory that starts at a multiple of 16 bytes, got an address 2 bytes "
        "past one",
    ),
    (dense.changed(d_v=576), "dense_decode: d_v must be 512, got 576"),
    (
        dense.changed(window=(-2, -1)),
        "dense_decode: window must be a pair of numbers of at least -1, got (-2, -1)",
    ),
    (dense.changed(softmax_scale=float("inf")), "dense_decode: softmax_scale must be finite, got inf"),
    (
        dense.changed(descale_q=fp32(1)),
        "dense_decode: descale_q must be left out where q is bfloat16, got float32 [1]",
    ),
    (
        dense.changed(lse=fp32(2, 3, HEADS)),
        "dense_decode: lse must be float32 [2, 4, 3], got float32 [2, 3, 4]",
    ),
    (
        sparse.changed(q=sparse.args[0].half()),
        "sparse_decode: q must be bfloat16 [b, s_q, h_q, 576 or 512], got float16 [2, 1, 4, 512]",
    ),
    (sparse.changed(indices=i32(1, 2)), "sparse_decode: indices must be int32 [2, 1, topk], got int32 [2]"),
    (
        sparse.changed(indices=apart(sparse.args[2])),
        "sparse_decode: indices must be contiguous in its last dimension, got stride(2) 2",
    ),
    (
        sparse.changed(record="v32_fp8"),
        "sparse_decode: record must be auto or a record of head size 512 (v32_nope_fp8, v4_fp8, v41_fp8, "
        "v41_fp4, v41_fp8_row, v41_fp4_row, v41_main_fp4 or bf16), got v32_fp8 of head size 576",
    ),
    (
        sparse.changed(extra_cache=pages("v4_fp8")),
        "sparse_decode: extra_indices must be given with extra_cache, got nothing",
    ),
    (
        sparse.changed(extra_topk_length=i32(1, 1)),
        "sparse_decode: extra_topk_length must be left out without extra_cache, got int32 [2]",
    ),
    (
        sparse.changed(attn_sink=fp32(HEADS + 1)),
        "sparse_decode: attn_sink must be float32 [4], got float32 [5]",
    ),
    (
        sparse.changed(q=bf16(2, 1, 130, 512)),
        "sparse_decode: q must be of h_q 1 to 128 or a multiple of 64 above, got h_q 130",
    ),
    (
        sparse.changed(out=misplaced(bf16(2, 1, HEADS, 512))),
        "sparse_decode: out must be memory that starts at a multiple of 16 bytes, got an address 2 bytes "
        "past one",
    ),
    (
        prefill.changed(kv=fp32(9, 1, 576)),
        "sparse_prefill_fwd: kv must be bfloat16 [s_kv, 1, 576], got float32 [9, 1, 576]",
    ),
    (
        prefill.changed(kv=bf16(9, 1, 512)),
        "sparse_prefill_fwd: kv must be bfloat16 [s_kv, 1, 576], got bfloat16 [9, 1, 512]",
    ),
    (
        prefill.changed(kv=apart(prefill.args[1])),
        "sparse_prefill_fwd: kv must be contiguous in its last dimension, got stride(2) 2",
    ),
    (
        prefill.changed(attn_sink=fp32(HEADS), sink_bias=fp32(HEADS)),
        "sparse_prefill_fwd: sink_bias must be left out where attn_sink is given, got float32 [4]",
    ),
    (prefill.changed(topk_length=i32(1)), "sparse_prefill_fwd: topk_length must be int32 [5], got int32 [1]"),
    (prefill.changed(indexer_topk=-1), "sparse_prefill_fwd: indexer_topk must be 0 to 6 (topk), got -1"),
    (
        prefill.changed(out=bf16(5, HEADS, 1024)[..., ::2]),
        "sparse_prefill_fwd: out must be contiguous in its last dimension, got stride(2) 2",
    ),
    (
        fused_prefill.changed(q=fp32(5, HEADS, 512)),
        "fused_prefill: q must be bfloat16 [s_q, h_q, 512], got float32 [5, 4, 512]",
    ),
    (
        fused_prefill.changed(token_positions=i32(1)),
        "fused_prefill: token_positions must be int32 [5], got int32 [1]",
    ),
    (
        fused_prefill.changed(q=bf16(5, 2 * HEADS, 512)[:, ::2]),
        "fused_prefill: q must be contiguous within a token, got stride(1) 1024",
    ),
    (
        fused_prefill.changed(q_norm_eps=-1.0),
        "fused_prefill: q_norm_eps must be finite and at least 0, got -1",
    ),
    (
        fused_prefill.changed(out_sf=torch.empty(5, GROUPS, 8, dtype=torch.int32)),
        "fused_prefill: out_sf must be of stride(0) 1, got strides [16, 8, 1]",
    ),
    (
        fused_prefill.changed(out_fp8=torch.empty(5, GROUPS, 1032).to(torch.float8_e4m3fn)[..., :1024]),
        "fused_prefill: out_fp8 must be contiguous, got shape [5, 2, 1024] with strides [2064, 1032, 1]",
    ),
    (
        fused_decode.changed(kv_cache=bf16(3, 4, 1, 576)),
        "fused_decode: kv_cache must be bfloat16 [num_blocks, page, 1, 512] for record bf16, got "
        "bfloat16 [3, 4, 1, 576]",
    ),
    (
        fused_decode.changed(indices=torch.zeros(3, 1, TOPK)),
        "fused_decode: indices must be int32 [3, topk], got float32 [3, 1, 6]",
    ),
    (
        fused_decode.changed(cos_sin_cache=fp32(64, 16).t()),
        "fused_decode: cos_sin_cache must be contiguous in its last dimension, got stride(1) 16",
    ),
    (
        fused_decode.changed(extra_indices=torch.zeros(3, 2)),
        "fused_decode: extra_cache must be given with extra_indices, got nothing",
    ),
    (fused_decode.changed(num_splits=-3), "fused_decode: num_splits must be None or 1 to 2147483647, got -3"),
    (
        partials.changed(q=bf16(3, HEADS, 576)),
        "fused_decode_partials: q must be bfloat16 [s_q, h_q, 512], got bfloat16 [3, 4, 576]",
    ),
    (partials.changed(num_splits=0), "fused_decode_partials: num_splits must be 1 to 2147483647, got 0"),
    (
        partials.changed(o_accum=bf16(1, 3, HEADS, 512)),
        "fused_decode_partials: o_accum must be float32 [1, 3, 4, 512], got bfloat16 [1, 3, 4, 512]",
    ),
    (
        partials.changed(lse_accum=fp32(2, 3, HEADS)),
        "fused_decode_partials: lse_accum must be float32 [1, 3, 4], got float32 [2, 3, 4]",
    ),
    (
        merge.changed(out_partials=torch.zeros(3, 5, HEADS, 64, dtype=torch.int32)),
        "combine_partials: out_partials must be float32, bfloat16 or float16 [n, s_q, h_q, d_v], got "
        "int32 [3, 5, 4, 64]",
    ),
    (merge.changed(attn_sink=fp32(1)), "combine_partials: attn_sink must be float32 [4], got float32 [1]"),
    (
        merge.changed(out_partials=apart(merge.args[0])),
        "combine_partials: out_partials must be contiguous in its last dimension, got stride(3) 2",
    ),
    (merge_fused.changed(n_groups=3), "combine_partials_fused: n_groups must be a divisor of h_q 4, got 3"),
    (
        merge_fused.changed(lse_partials=bf16(3, 5, HEADS)),
        "combine_partials_fused: lse_partials must be float32 [3, 5, 4], got bfloat16 [3, 5, 4]",
    ),
    (
        merge_fused.changed(lse_partials=fp32(2, 5, HEADS)),
        "combine_partials_fused: lse_partials must be float32 [3, 5, 4], got float32 [2, 5, 4]",
    ),
    (
        quantize.changed(x=fp32(10, 512)),
        "quantize_kv: x must be bfloat16 [n, 512] for record v4_fp8, got float32 [10, 512]",
    ),
    (
        quantize.changed(x=apart(quantize.args[0])),
        "quantize_kv: x must be contiguous in its last dimension, got stride(1) 2",
    ),
    (quantize.changed(record="v5"), f"quantize_kv: record must be {RECORDS} or bf16, got 'v5'"),
    (quantize.changed(page=2**31), "quantize_kv: page must be 1 to 2147483647, got 2147483648"),
    (
        dequantize.changed(record="v32_fp8"),
        f"dequantize_kv: pages must be uint8, int8 or float8_e4m3fn [num_blocks, page, 1, {V32_BYTES}] "
        f"for record v32_fp8, got uint8 [3, 4, 1, {V4_BYTES}]",
    ),
    (
        dequantize.changed(pages=pages("v4_fp8").flatten()),
        f"dequantize_kv: pages must be uint8, int8 or float8_e4m3fn [num_blocks, page, 1, {V4_BYTES}] for "
        "record v4_fp8, got uint8 [7008]",
    ),
    (
        dequantize.changed(x=bf16(11, 512)),
        "dequantize_kv: x must be of 12 rows for 3 pages of 4, got bfloat16 [11, 512]",
    ),
    (
        dequantize.changed(pages=bf16(3, 512), record="bf16"),
        "dequantize_kv: pages must be bfloat16 [num_blocks, page, 1, 576] for record bf16, got bfloat16 "
        "[3, 512]",
    ),
    (append_kv(kv=fp32(3, 512)), "append_kv: kv must be bfloat16 [n, 576 or 512], got float32 [3, 512]"),
    (append_kv(slots=i32(0, 1)), "append_kv: slots must be int32 or int64 [3], got int32 [2]"),
    (
        append_kv(kv=apart(bf16(3, 512))),
        "append_kv: kv must be contiguous in its last dimension, got stride(1) 2",
    ),
    (sparse.changed(kv_cache=None), "sparse_decode: kv_cache must be a tensor, got None"),
    (append_kv(kv=None), "append_kv: kv must be a tensor, got None"),
    (
        append_kv(cache=torch.zeros(3, 4, V4_BYTES, dtype=torch.uint8)),
        "append_kv: cache must be uint8, int8 or float8_e4m3fn [num_blocks, page, 1, bytes] of a record for "
        f"head size 512 ({FOUND_BY_BYTES}) or bfloat16 [num_blocks, page, 1, 512], got "
        f"uint8 [3, 4, {V4_BYTES}]",
    ),
    (append_kv(record="v5"), f"append_kv: record must be {RECORDS} or bf16, got 'v5'"),
    (
        q_b_proj.changed(weight=bf16(HEADS * 32, 256)),
        "permute_q_b_proj: weight must be float8_e4m3fn [128, r], got bfloat16 [128, 256]",
    ),
    (
        q_b_proj.changed(h_q=3),
        "permute_q_b_proj: weight must be float8_e4m3fn [96, r], got float8_e4m3fn [128, 256]",
    ),
    (
        q_b_proj.changed(scales=torch.zeros(HEADS * 32, 3, dtype=torch.int32).t().contiguous().t()),
        "permute_q_b_proj: scales must be int32 [128, 2], got int32 [128, 3]",
    ),
    (wv_proj.changed(d_o=256), "permute_wv_proj: d_o must be 512, got 256"),
    (
        wv_proj.changed(scales=torch.zeros(2, 3, 8)),
        "permute_wv_proj: scales must be int32 [2, 3, 8], got float32 [2, 3, 8]",
    ),
    (
        wv_proj.changed(weight=apart(wv_proj.args[0])),
        "permute_wv_proj: weight must be contiguous, got shape [2, 3, 1024] with strides [6144, 2048, 2]",
    ),
    (lambda: tilewise.set_num_threads(65537), "set_num_threads: n must be 0 to 65536, got 65537"),
    *TRAINING_ERRORS,
]


@pytest.mark.parametrize(
    ("call", "text"), ERRORS, ids=[f"{i}, {text.partition(',')[0]}" for i, (_, text) in enumerate(ERRORS)]
)
def test_error_texts(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        call()
    assert type(caught.value) is RuntimeError
    assert str(caught.value) == text


def test_every_operator_has_three_errors() -> None:
    counts: dict[str, int] = {}
    for _, text in ERRORS:
        op = text.partition(":")[0]
        counts[op] = counts.get(op, 0) + 1
    assert counts.pop("set_num_threads") == 1
    others = {"append_kv", "invert_block_selection"}
    assert set(counts) == {call.op for call in ops_calls.CALLS.values()} | others
    assert min(counts.values()) >= 3


# ---- what Python catches ------------------------------------------------------------------------------


@each_call
def test_missing_and_unknown_arguments(call: Call) -> None:
    function = getattr(tilewise, call.op)
    with pytest.raises(TypeError, match=rf"^{call.op}\(\) missing \d+ required positional argument"):
        function(call.args[0])
    with pytest.raises(TypeError, match=rf"^{call.op}\(\) got an unexpected keyword argument 'no_such'$"):
        function(*call.args, no_such=1)
    name = call.outputs[0]
    others = call.functional._schema.arguments[len(call.args) :]
    values = [call.kwargs.get(a.name, a.default_value) for a in others]
    with pytest.raises(TypeError, match=rf"^{call.op}\(\) takes .* positional arguments but "):
        function(*call.args, *values, call.run()[0])
    if len(call.outputs) > 1:
        with pytest.raises(TypeError, match=rf"^{call.op}: \w+ must be a tensor, got NoneType$"):
            function(None, *call.args[1:], **call.kwargs, **{name: call.run()[0]})


def test_no_tensor_where_one_is_needed() -> None:
    q, cache, lists, scale = sparse.args
    with pytest.raises(RuntimeError, match=r"Expected a value of type 'Tensor' for argument 'q'"):
        tilewise.sparse_decode([1.0], cache, lists, scale)
    with pytest.raises(RuntimeError, match=r"argument 'softmax_scale'"):
        tilewise.sparse_decode(q, cache, lists, "large")


# ---- tensors that require grad -------------------------------------------------------------------------

ADVICE = "detach() it, or call under torch.no_grad() or torch.inference_mode()"


def float_tensors(call: Call) -> list[str]:
    names = [a.name for a in call.functional._schema.arguments]
    values = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    return [n for n, v in values.items() if isinstance(v, torch.Tensor) and v.dtype.is_floating_point]


def requiring_grad(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_()


# Operators with gradients, and of what; test_training_autograd.py has what these refuse.
DIFFERENTIABLE = {"dense_prefill_fwd", "block_sparse_prefill_fwd", "sparse_prefill_fwd"}


@pytest.mark.parametrize(
    "call",
    [pytest.param(c, id=key) for key, c in ops_calls.CALLS.items() if c.op not in DIFFERENTIABLE],
)
def test_tensors_that_require_grad_are_refused(call: Call) -> None:
    names = [a.name for a in call.functional._schema.arguments]
    values = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    for name in float_tensors(call):
        refused = call.changed(**{name: requiring_grad(values[name])})
        text = f"{call.op}: {name} must not require grad, the operator is not differentiable: {ADVICE}"
        with pytest.raises(RuntimeError) as caught:
            refused()
        assert str(caught.value) == text
        with torch.no_grad():
            results = ops_calls.as_tuple(refused())
        ops_calls.assert_same_bits(results, call.run_native())
        assert not any(t.requires_grad for t in results)


@each_call
def test_outputs_that_require_grad_are_refused(call: Call) -> None:
    guards = ops_calls.guarded_outputs(call)
    for name, guard in guards.items():
        if not guard.view.dtype.is_floating_point:
            continue
        guard.view.requires_grad_()
        with pytest.raises(RuntimeError, match=rf"^{call.op}: {name} must not require grad, "):
            call.run_native(**{name: guard.view})
        guard.view.requires_grad_(False)
    assert ops_calls.nothing_written(guards.values())


def test_appended_rows_must_not_require_grad() -> None:
    cache = pages("bf16")
    before = cache.clone()
    rows = requiring_grad(bf16(1, 576))
    for arguments, name in (((rows, cache), "kv"), ((bf16(1, 576), requiring_grad(cache)), "cache")):
        with pytest.raises(RuntimeError, match=rf"^append_kv: {name} must not require grad, "):
            tilewise.append_kv(*arguments, i32(0))
    assert torch.equal(cache, before)
    with torch.no_grad():
        tilewise.append_kv(rows, cache, i32(0))
    assert torch.equal(cache[0, 0, 0], rows[0])


def test_results_take_part_in_gradients_as_constants() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out, _lse = sparse.run_native()
        weight = requiring_grad(bf16(512))
        (out.float() * weight).sum().backward()
    assert not out.requires_grad
    assert torch.allclose(weight.grad.float(), out.float().sum((0, 1, 2)), rtol=0.01, atol=1e-3)


@each_call
def test_writing_an_output_raises_its_version(call: Call) -> None:
    guards = ops_calls.guarded_outputs(call)
    for name, guard in guards.items():
        version = guard.view._version
        with torch.no_grad():
            call.run_native(**{name: guard.view})
        assert guard.view._version > version


def test_autograd_notices_that_a_kept_tensor_is_overwritten() -> None:
    out, weight = torch.zeros(2, 1, HEADS, 512, dtype=torch.bfloat16), requiring_grad(bf16(512))
    loss = (out * weight).sum()
    sparse.run_native(out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_writing_a_cache_raises_its_version() -> None:
    cache = pages("v4_fp8")
    version = cache._version
    tilewise.append_kv(bf16(1, 512), cache, i32(0))
    assert cache._version > version
