"""torch.ops.tilewise.*: schemas, shapes, outputs, threads, errors.

What the operators compute is the business of the other files; here every call is compared with itself in
another form, bit for bit.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ops_calls import (
    CALLS,
    GROUPS,
    HEADS,
    NO_GRAD,
    SENTINEL,
    TOPK,
    Call,
    assert_same_bits,
    bf16,
    bits,
    check_operator,
    combine_partials,
    combine_partials_fused,
    dense_decode,
    dequantize_kv,
    each_call,
    fp32,
    fused_decode,
    fused_decode_partials,
    fused_prefill,
    guarded_outputs,
    i32,
    kernel_names,
    ops,
    pages,
    permute_q_b_proj,
    permute_wv_proj,
    quantize_kv,
    sparse_decode,
    sparse_prefill_fwd,
)
from tilewise import _ops
from torch._subclasses.fake_tensor import FakeTensorMode

# ---- forms of a call ----------------------------------------------------------------------------------


@each_call
def test_opcheck_functional(call: Call) -> None:
    check_operator(call.functional, call.args, call.kwargs)


@each_call
def test_opcheck_out(call: Call) -> None:
    outputs = {name: guard.view for name, guard in guarded_outputs(call).items()}
    check_operator(call.out, call.args, {**call.kwargs, **outputs})


def test_opcheck_append_kv() -> None:
    check_operator(ops.append_kv.default, (bf16(3, 512), pages("v4_fp8"), i32(7, -1, 2)), {})


@each_call
def test_out_has_the_bits_of_the_functional_form_and_no_others(call: Call) -> None:
    guards = guarded_outputs(call)
    result = call.out(*call.args, **call.kwargs, **{name: guard.view for name, guard in guards.items()})
    assert result is None
    expected = call.run()[: len(call.outputs)]
    assert_same_bits(tuple(guard.view for guard in guards.values()), expected)
    assert [name for name, guard in guards.items() if not guard.neighbours_untouched()] == []


@each_call
def test_fake_outputs_look_like_real_ones(call: Call) -> None:
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in call.args]
        options = {
            k: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for k, v in call.kwargs.items()
        }
        fake = call.functional(*fakes, **options)
    meta = call.functional(
        *[a.to("meta") if isinstance(a, torch.Tensor) else a for a in call.args],
        **{k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in call.kwargs.items()},
    )

    def looks(result: Any) -> list[Any]:
        result = result if isinstance(result, tuple) else (result,)
        return [(t.dtype, tuple(t.shape), t.stride()) for t in result]

    assert looks(fake) == looks(meta) == looks(call.run())


def test_every_operator_is_in_the_list() -> None:
    found = {
        name.removeprefix("tilewise::").partition(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("tilewise::")
    }
    helpers = {"append_kv", "invert_block_selection", "noop", "set_num_threads", "get_num_threads"}
    on_gpus_alone = {"dense_decode_plan", "sparse_decode_plan"}
    assert found == {call.op for call in CALLS.values()} | helpers | on_gpus_alone | NO_GRAD


def test_indexer_output_is_empty_without_indexer() -> None:
    assert sparse_prefill_fwd().run()[3].shape == (0,)
    assert sparse_prefill_fwd(indexer_topk=TOPK).run()[3].shape == (5, HEADS)


def test_append_kv_writes_the_cache() -> None:
    rows, cache = bf16(3, 512, seed=7), pages("v4_fp8")
    before = cache.clone()
    assert ops.append_kv(rows, cache, i32(7, -1, 2)) is None
    changed = torch.nonzero(
        (ops.dequantize_kv(cache, "v4_fp8") != ops.dequantize_kv(before, "v4_fp8")).any(1)
    )
    assert changed.flatten().tolist() == [2, 7]
    fresh = ops.quantize_kv(rows, "v4_fp8", 1)
    assert torch.equal(ops.dequantize_kv(cache, "v4_fp8")[[7, 2]], ops.dequantize_kv(fresh, "v4_fp8")[[0, 2]])


@pytest.mark.parametrize(
    "call", [fused_prefill(), fused_decode(), fused_decode(num_splits=2)], ids=lambda c: c.op
)
def test_bf16_output_is_the_fp8_output_before_the_cast(call: Call) -> None:
    guards = guarded_outputs(call)
    s_q = call.args[0].shape[0]
    plain = torch.empty(s_q, HEADS, 512, dtype=torch.bfloat16)
    call.out(
        *call.args, **call.kwargs, out_bf16=plain, **{name: guard.view for name, guard in guards.items()}
    )
    out_fp8, out_sf = guards["out_fp8"].view, guards["out_sf"].view
    # [s, group, c / 32, head, c % 32] back to [s, head, c]
    size = HEADS // GROUPS
    values = out_fp8.float().view(s_q, GROUPS, 16, size, 32)
    scales = torch.exp2(out_sf.contiguous().view(torch.uint8).float() - 127).view(s_q, GROUPS, 16, size, 1)
    restored = (values * scales).permute(0, 1, 3, 2, 4).reshape(s_q, HEADS, 512)
    # e4m3 has 3 bits behind the point: half a step is 2^-4 of a value, and of the smallest normal below it.
    step = torch.maximum(
        plain.float().abs(),
        scales.permute(0, 1, 3, 2, 4).expand(s_q, GROUPS, size, 16, 32).reshape(s_q, HEADS, 512) * 2**-6,
    )
    assert plain.float().abs().max() > 0
    assert ((restored - plain.float()).abs() <= step * 2**-4 * 1.01).all()


# ---- threads and plans --------------------------------------------------------------------------------


def test_threads_follow_torch_unless_set() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert ops.get_num_threads() == 1
        torch.set_num_threads(3)
        assert ops.get_num_threads() == 3
        ops.set_num_threads(2)
        assert ops.get_num_threads() == 2
    finally:
        ops.set_num_threads(0)
        torch.set_num_threads(before)
    assert ops.get_num_threads() == before


@each_call
def test_number_of_threads_changes_no_bit(call: Call) -> None:
    expected = call.run()
    try:
        for threads in (1, 2, 5):
            ops.set_num_threads(threads)
            assert_same_bits(call.run(), expected)
    finally:
        ops.set_num_threads(0)


def test_two_python_threads_at_once_give_the_same_bits() -> None:
    calls = list(CALLS.values())
    expected = [call.run() for call in calls]
    failures: list[str] = []

    def work(offset: int) -> None:
        for i in range(3 * len(calls)):
            at = (i + offset) % len(calls)
            try:
                assert_same_bits(calls[at].run(), expected[at])
            except AssertionError:
                failures.append(calls[at].op)

    threads = [threading.Thread(target=work, args=(offset,)) for offset in (0, len(calls) // 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_environment_forces_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    call = sparse_decode()
    kernels = kernel_names("sparse_decode")
    expected = call.run()
    monkeypatch.setenv("TILEWISE_KERNEL", "no_such")
    with pytest.raises(RuntimeError) as caught:
        call.run()
    *names, last = kernels
    assert last == "cpu_baseline"
    expected_text = f"sparse_decode: kernel must be {', '.join(names)} or {last}, got no_such"
    assert str(caught.value) == expected_text
    monkeypatch.setenv("TILEWISE_KERNEL", "cpu_baseline")
    baseline = call.run()
    monkeypatch.delenv("TILEWISE_KERNEL")
    assert_same_bits(call.run(), expected)
    assert torch.allclose(baseline[0].float(), expected[0].float(), atol=0.02)


def test_more_shapes_than_plans_are_kept() -> None:
    ops.set_num_threads(1)
    try:
        for n in range(1, 1200):
            x = torch.zeros(n, 512, dtype=torch.bfloat16)
            assert ops.quantize_kv(x, "bf16", 64).shape[0] == (n + 63) // 64
    finally:
        ops.set_num_threads(0)


# ---- errors -------------------------------------------------------------------------------------------


def changed(call: Call, **changes: Any) -> Callable[[], Any]:
    """The call with some arguments replaced, by name."""
    names = [argument.name for argument in call.functional._schema.arguments]
    args = dict(zip(names, call.args, strict=False))
    arguments = {**args, **call.kwargs, **changes}
    return lambda: call.functional(**arguments)


ERRORS: dict[str, tuple[Callable[[], Any], str]] = {
    "dense_decode": (
        changed(dense_decode(), block_table=torch.zeros(2, 2)),
        "dense_decode: block_table must be int32 [2, max_blocks], got float32 [2, 2]",
    ),
    "dense_decode, window of three": (
        changed(dense_decode(), window=[1, 2, 3]),
        "dense_decode: window must be a pair of numbers of at least -1, got (1, 2, 3)",
    ),
    "dense_decode, plan": (
        changed(dense_decode(), plan=i32(1, 2)),
        "dense_decode: plan must be left out on the CPU, got int32 [2]",
    ),
    "dense_decode_plan": (
        lambda: ops.dense_decode_plan(*dense_decode().args[:4]),
        "dense_decode_plan: q must be on a GPU, got cpu",
    ),
    "dense_decode_plan, table": (
        lambda: ops.dense_decode_plan(*dense_decode().args[:2], torch.zeros(2, 2), i32(7, 5)),
        "dense_decode_plan: block_table must be int32 [2, max_blocks], got float32 [2, 2]",
    ),
    "sparse_decode_plan": (
        lambda: ops.sparse_decode_plan(*sparse_decode().args[:3]),
        "sparse_decode_plan: q must be on a GPU, got cpu",
    ),
    "dense_decode, six dimensions": (
        changed(dense_decode(), k_cache=bf16(1, 1, 1, 1, 1, 576)),
        "dense_decode: k_cache must be of at most 5 dimensions, got 6 of them",
    ),
    "sparse_decode": (
        changed(sparse_decode(), indices=torch.zeros(2, 1, TOPK, dtype=torch.int64)),
        "sparse_decode: indices must be int32 [2, 1, topk], got int64 [2, 1, 6]",
    ),
    "sparse_decode, record": (
        changed(sparse_decode(), record="v5"),
        f"sparse_decode: record must be {', '.join(_ops.record_names()[:-1])} or bf16, got 'v5'",
    ),
    "sparse_decode, exponent bytes": (
        changed(sparse_decode(), attn_sink=torch.ones(HEADS).to(torch.float8_e8m0fnu)),
        "sparse_decode: attn_sink must be float32 [4], got float8_e8m0fnu [4]",
    ),
    "sparse_decode, complex": (
        changed(sparse_decode(), attn_sink=torch.ones(HEADS, dtype=torch.complex64)),
        "sparse_decode: attn_sink must be float32 [4], got an unknown type [4]",
    ),
    "sparse_prefill_fwd": (
        changed(sparse_prefill_fwd(), d_v=256),
        "sparse_prefill_fwd: d_v must be 512, got 256",
    ),
    "sparse_prefill_fwd, indexer": (
        changed(sparse_prefill_fwd(), indexer_topk=7),
        "sparse_prefill_fwd: indexer_topk must be 0 to 6 (topk), got 7",
    ),
    "fused_prefill": (
        changed(fused_prefill(), n_groups=3),
        "fused_prefill: n_groups must be a divisor of h_q 4, got 3",
    ),
    "fused_prefill, no groups": (
        changed(fused_prefill(), n_groups=0),
        "fused_prefill: n_groups must be a divisor of h_q 4, got 0",
    ),
    "fused_decode": (
        changed(fused_decode(), cos_sin_cache=fp32(16, 32)),
        "fused_decode: cos_sin_cache must be float32 [max_pos, 64], got float32 [16, 32]",
    ),
    "fused_decode, splits": (
        changed(fused_decode(), num_splits=0),
        "fused_decode: num_splits must be None or 1 to 2147483647, got 0",
    ),
    "fused_decode, wrong with splits": (
        changed(fused_decode(num_splits=2), token_positions=i32(1)),
        "fused_decode: token_positions must be int32 [3], got int32 [1]",
    ),
    "fused_decode_partials": (
        changed(fused_decode_partials(), num_splits=-1),
        "fused_decode_partials: num_splits must be 1 to 2147483647, got -1",
    ),
    "combine_partials": (
        changed(combine_partials(), lse_partials=fp32(3, 5)),
        "combine_partials: lse_partials must be float32 [3, 5, 4], got float32 [3, 5]",
    ),
    "combine_partials_fused": (
        changed(combine_partials_fused(), out_partials=fp32(3, 5, HEADS, 64)),
        "combine_partials_fused: out_partials must be float32, bfloat16 or float16 [n, s_q, h_q, 512], "
        "got float32 [3, 5, 4, 64]",
    ),
    "quantize_kv": (
        changed(quantize_kv("v4_fp8"), x=bf16(10, 576)),
        "quantize_kv: x must be bfloat16 [n, 512] for record v4_fp8, got bfloat16 [10, 576]",
    ),
    "quantize_kv, page": (
        changed(quantize_kv("v4_fp8"), page=0),
        "quantize_kv: page must be 1 to 2147483647, got 0",
    ),
    "dequantize_kv": (
        changed(dequantize_kv("v4_fp8"), pages=bf16(3, 4, 1, 512)),
        f"dequantize_kv: pages must be uint8, int8 or float8_e4m3fn [num_blocks, page, 1, "
        f"{_ops.record_bytes('v4_fp8', 512)}] for record v4_fp8, got bfloat16 [3, 4, 1, 512]",
    ),
    "append_kv": (
        lambda: ops.append_kv(bf16(3, 512), pages("v4_fp8"), torch.zeros(3)),
        "append_kv: slots must be int32 or int64 [3], got float32 [3]",
    ),
    "permute_q_b_proj": (
        changed(permute_q_b_proj(), d_q=24),
        "permute_q_b_proj: d_q must be a positive multiple of 16, got 24",
    ),
    "permute_wv_proj": (
        changed(permute_wv_proj(), group_size=3),
        "permute_wv_proj: weight must be float8_e4m3fn [groups, n, 1536], got float8_e4m3fn [2, 3, 1024]",
    ),
    "set_num_threads": (
        lambda: ops.set_num_threads(-1),
        "set_num_threads: n must be 0 to 65536, got -1",
    ),
}


@pytest.mark.parametrize(("call", "text"), ERRORS.values(), ids=ERRORS.keys())
def test_errors_arrive_whole(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(RuntimeError) as caught:
        call()
    assert type(caught.value) is RuntimeError
    assert str(caught.value) == text


@each_call
def test_a_wrong_output_is_refused_before_anything_is_written(call: Call) -> None:
    guards = guarded_outputs(call)
    outputs = {name: guard.view for name, guard in guards.items()}
    wrong = call.outputs[-1]
    outputs[wrong] = outputs[wrong].to(torch.float64)
    with pytest.raises(RuntimeError, match=rf"^{call.op}: {wrong} must be .*, got float64 \["):
        call.out(*call.args, **call.kwargs, **outputs)
    for guard in guards.values():
        assert (bits(guard.buffer) == SENTINEL).all()


def test_pages_must_have_the_page_size_named() -> None:
    x, into = bf16(10, 512), pages("v4_fp8")
    with pytest.raises(RuntimeError) as caught:
        ops.quantize_kv.out(x, "v4_fp8", 8, pages=into)
    expected = f"quantize_kv: pages must be of page 8, got uint8 {list(into.shape)}"
    assert str(caught.value) == expected


class MallocInfo(ctypes.Structure):
    """struct mallinfo2 of <malloc.h>."""

    NAMES = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = tuple((name, ctypes.c_size_t) for name in NAMES.split())


def allocated_bytes() -> int:
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = MallocInfo
    gc.collect()
    info = libc.mallinfo2()
    return info.uordblks + info.hblkhd


def bytes_kept_by(call: Callable[[], Any], times: int = 100) -> float:
    """Bytes that a call leaves allocated, on average, once everything that is kept on purpose is there."""

    def run() -> None:
        with contextlib.suppress(RuntimeError):
            call()

    for _ in range(20):
        run()
    before = allocated_bytes()
    for _ in range(times):
        run()
    return (allocated_bytes() - before) / times


def test_calls_and_refusals_keep_no_memory() -> None:
    calls = {
        **{name: call.run for name, call in CALLS.items()},
        **{f"refused: {name}": call for name, (call, _) in ERRORS.items()},
    }
    ops.set_num_threads(1)
    try:
        # The smallest piece that malloc hands out takes 32 bytes. What is kept once in a while is no leak.
        kept = [
            name for name, call in calls.items() if all(bytes_kept_by(call) > 24 for _measurement in range(3))
        ]
    finally:
        ops.set_num_threads(0)
    assert kept == []


def test_the_library_needs_no_python() -> None:
    path = os.fspath(_ops._library_path())
    needed = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    assert "libtorch_cpu.so" in needed
    for unwanted in ("libpython", "libtorch_python", "libtorch.so", "libc10.so"):
        assert unwanted not in needed


def test_the_library_needs_no_cuda() -> None:
    """With the GPU kernels, too, it loads where there is no CUDA: its runtime is linked statically."""
    path = os.fspath(_ops._library_path())
    needed = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    assert "cuda" not in "".join(line for line in needed.splitlines() if "(NEEDED)" in line)
    command = ["nm", "--dynamic", "--undefined-only", path]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in symbols if re.match(r"_*(cuda|cu[A-Z])", name)] == []
