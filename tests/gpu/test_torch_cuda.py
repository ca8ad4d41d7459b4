"""torch's CUDA tensors: operators and flash_mla against the same calls on the CPU, on streams, in graphs."""

from __future__ import annotations

from typing import Any

import compat_calls
import ops_calls
import pytest
import torch
from ops_calls import CALLS, Call, bits, each_call

FUNCTION_CALLS = [(function, name) for function in compat_calls.FUNCTIONS.values() for name in function.calls]
# Outputs whose bits two backends share; the others round differently on the way.
EXACT = ("quantize_kv", "dequantize_kv", "append_kv", "permute_q_b_proj", "permute_wv_proj")
# Those are read together: a code may lie in the next group of exponents.
CODES = (torch.float8_e4m3fn, torch.int32)


def on_gpu(value: Any) -> Any:
    return value.cuda() if isinstance(value, torch.Tensor) else value


def moved(call: Call) -> Call:
    return call._replace(
        args=tuple(map(on_gpu, call.args)), kwargs={k: on_gpu(v) for k, v in call.kwargs.items()}
    )


def assert_close(op: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    assert got.is_cuda
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    got = got.cpu()
    if op in EXACT:
        assert torch.equal(bits(got), bits(expected))
    elif got.dtype in CODES:
        same = (bits(got) == bits(expected)).float().mean().item()
        assert same > 0.97
    else:
        torch.testing.assert_close(got, expected, rtol=2**-7, atol=2e-2, equal_nan=True)


@each_call
def test_as_on_the_cpu(call: Call) -> None:
    for got, expected in zip(moved(call).run(), call.run(), strict=True):
        assert_close(call.op, got, expected)


@each_call
def test_on_another_stream(call: Call) -> None:
    gpu = moved(call)
    expected = gpu.run()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = gpu.run()
    stream.synchronize()
    ops_calls.assert_same_bits(got, expected)


@each_call
def test_captured_in_a_graph(call: Call) -> None:
    gpu = moved(call)
    expected = gpu.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = gpu.run()
    for output in got:
        output.view(torch.uint8).zero_() if output.is_contiguous() else output.zero_()
    graph.replay()
    torch.cuda.synchronize()
    ops_calls.assert_same_bits(got, expected)


def test_append_kv() -> None:
    rows, slots = ops_calls.bf16(6, 512), ops_calls.i32(3, 0, -1, 99, 7, 3)
    on_cpu = ops_calls.pages("v4_fp8")
    on_cuda = on_cpu.cuda()
    torch.ops.tilewise.append_kv(rows, on_cpu, slots, "v4_fp8")
    torch.ops.tilewise.append_kv(rows.cuda(), on_cuda, slots.cuda(), "v4_fp8")
    assert torch.equal(on_cuda.cpu(), on_cpu)


@pytest.mark.parametrize(("function", "name"), FUNCTION_CALLS)
def test_flash_mla(function: compat_calls.Function, name: str) -> None:
    expected = function.run(name)
    arguments = {key: on_gpu(value) for key, value in function.calls[name].items()}
    if "tile_scheduler_metadata" in arguments:
        arguments["tile_scheduler_metadata"] = compat_calls.meta()
    for got, wanted in zip(function.function(**arguments), expected, strict=True):
        assert_close(function.native, got, wanted)


def test_mixed_devices_are_refused() -> None:
    call = CALLS["sparse_prefill_fwd"]
    q, kv, indices, scale = call.args
    with pytest.raises(RuntimeError, match="kv must be on cuda:0, got"):
        torch.ops.tilewise.sparse_prefill_fwd(q.cuda(), kv, indices.cuda(), scale)
