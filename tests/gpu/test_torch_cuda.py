"""torch's CUDA tensors: operators and flash_mla against the oracle and the CPU, on streams, in graphs."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import compat_calls
import gpu_calls
import ops_calls
import oracle
import pytest
import test_ops_flashmla as flashmla_calls
import torch
from gpu_calls import assert_right, memory, moved, moved_to, named_tensors, on_gpu, tensors_of
from ops_calls import (
    HEADS,
    SENTINEL,
    SERVING_CALLS,
    Call,
    Guarded,
    assert_same_bits,
    bf16,
    bits,
    each_serving_call,
    i32,
    ops,
)
from tilewise import _ops
from torch._subclasses.fake_tensor import FakeTensorMode

FUNCTION_CALLS = [
    (kind, name) for kind, function in compat_calls.FUNCTIONS.items() for name in function.calls
]
# About 10 ms, in which what was launched behind it waits.
CYCLES = 20_000_000


def negated(x: torch.Tensor) -> torch.Tensor:
    """Another value of the same shape and type: numbers negated, bytes and integers in another order."""
    if x.dtype == torch.float8_e4m3fn:
        return (x.view(torch.uint8) ^ 0x80).view(x.dtype)
    return -x if x.is_floating_point() else x.roll(1, 0)


# ---- forms of a call ----------------------------------------------------------------------------------


@each_serving_call
def test_results(call: Call) -> None:
    assert_right(call, moved(call).run())


@each_serving_call
def test_out_has_the_bits_of_the_functional_form_and_no_others(call: Call) -> None:
    gpu = moved(call)
    guards = ops_calls.guarded_outputs(gpu)
    assert all(guard.view.device.type == gpu_calls.DEVICE for guard in guards.values())
    result = gpu.out(*gpu.args, **gpu.kwargs, **{name: guard.view for name, guard in guards.items()})
    assert result is None
    assert_same_bits(tuple(guard.view for guard in guards.values()), gpu.run()[: len(call.outputs)])
    assert [name for name, guard in guards.items() if not guard.neighbours_untouched()] == []


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@each_serving_call
def test_on_a_gpu_that_is_not_the_current_one(call: Call) -> None:
    expected = moved(call).run()
    kwargs = {name: moved_to(value, "cuda:1") for name, value in call.kwargs.items()}
    other = call._replace(args=moved_to(call.args, "cuda:1"), kwargs=kwargs)
    guards = ops_calls.guarded_outputs(other)
    outputs = {name: guard.view for name, guard in guards.items()}
    other.out(*other.args, **other.kwargs, **outputs)
    for got in (other.run(), tuple(outputs.values())):
        assert all(x.device == torch.device("cuda:1") for x in got)
        assert_same_bits(moved_to(got, "cpu"), moved_to(expected, "cpu")[: len(got)])
    assert torch.cuda.current_device() == 0


@each_serving_call
def test_inputs_are_left_alone(call: Call) -> None:
    gpu = moved(call)
    gpu.run()
    for on_cpu, on_cuda in zip(tensors_of(call), tensors_of(gpu), strict=True):
        assert torch.equal(memory(on_cuda).cpu(), memory(on_cpu))


@each_serving_call
def test_fake_outputs_look_like_real_ones(call: Call) -> None:
    gpu = moved(call)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in gpu.args]
        options = {
            k: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for k, v in gpu.kwargs.items()
        }
        fake = ops_calls.as_tuple(gpu.functional(*fakes, **options))
    looks = [[(t.dtype, t.shape, t.stride(), t.device) for t in result] for result in (fake, gpu.run())]
    assert looks[0] == looks[1]


@pytest.mark.parametrize("record", _ops.record_names())
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_append_kv(record: str, kind: torch.dtype) -> None:
    rows = bf16(6, _ops.record_dim(record) or 576, seed=7)
    slots = i32(3, 0, -1, 99, 7, 2**31 - 1).to(kind)
    on_cpu = ops_calls.pages(record)
    on_cuda = on_gpu(on_cpu)
    ops.append_kv(rows, on_cpu, slots, record)
    assert ops.append_kv(on_gpu(rows), on_cuda, on_gpu(slots), record) is None
    assert torch.equal(memory(on_cuda).cpu(), memory(on_cpu))


def test_bf16_outputs_may_be_asked_for() -> None:
    for call in (ops_calls.fused_prefill(), ops_calls.fused_decode(), ops_calls.fused_decode(num_splits=2)):
        gpu = moved(call)
        guards = ops_calls.guarded_outputs(gpu)
        plain = Guarded(torch.empty(call.args[0].shape, dtype=torch.bfloat16, device=gpu_calls.DEVICE), True)
        outputs = {name: guard.view for name, guard in guards.items()}
        gpu.out(*gpu.args, **gpu.kwargs, **outputs, out_bf16=plain.view)
        assert_same_bits(tuple(outputs.values()), gpu.run())
        assert plain.neighbours_untouched()
        options = {name: value for name, value in call.kwargs.items() if name != "num_splits"}
        exact, rounded = getattr(oracle, call.op)(*call.args, **options)
        oracle.assert_rows(plain.view.cpu(), exact.out, rounded.out)


# ---- streams, graphs, threads -------------------------------------------------------------------------


@each_serving_call
def test_on_another_stream(call: Call) -> None:
    """The inputs get their values on that stream, late: a call anywhere else would not see them."""
    expected = moved(call).run()
    gpu, right = moved(call), moved(call)
    for x in tensors_of(gpu):
        memory(x).zero_()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)
        for x, value in zip(tensors_of(gpu), tensors_of(right), strict=True):
            memory(x).copy_(memory(value))
        got = gpu.run()
    stream.synchronize()
    assert_same_bits(got, expected)


@each_serving_call
def test_captured_in_a_graph_and_replayed_with_other_inputs(call: Call) -> None:
    gpu = moved(call)
    first = gpu.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = gpu.run()
    for changes in (lambda x: x, negated):
        for x in tensors_of(gpu):
            x.copy_(changes(x))
        for output in got:
            memory(output).fill_(0xFF)
        graph.replay()
        graph.replay()
        torch.cuda.synchronize()
        assert_same_bits(got, gpu.run())
    assert any(not torch.equal(bits(a), bits(b)) for a, b in zip(got, first, strict=True))


def test_append_kv_in_a_graph() -> None:
    rows, cache, slots = on_gpu(bf16(3, 512)), on_gpu(ops_calls.pages("v4_fp8")), on_gpu(i32(7, -1, 2))
    before = cache.clone()
    ops.append_kv(rows, cache, slots)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.append_kv(rows, cache, slots)
    cache.copy_(before)
    slots.copy_(on_gpu(i32(0, 11, 12)))
    rows.neg_()
    graph.replay()
    ops.append_kv(rows, before, slots)
    assert torch.equal(cache, before)


def test_another_thread_gives_the_same_bits() -> None:
    calls = [moved(call) for call in SERVING_CALLS.values()]
    expected = [call.run() for call in calls]
    found: list[tuple[torch.Tensor, ...]] = []

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            found.extend(call.run() for call in calls)
            torch.cuda.current_stream().synchronize()

    torch.cuda.synchronize()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(found) == len(calls)
    for got, wanted in zip(found, expected, strict=True):
        assert_same_bits(got, wanted)


@each_serving_call
def test_calls_keep_no_memory(call: Call) -> None:
    gpu = moved(call)
    gpu.run()
    torch.cuda.synchronize()
    gc.collect()  # of the tests before this one
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        gpu.run()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


# ---- FlashMLA's names ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name"), FUNCTION_CALLS)
def test_flash_mla(kind: str, name: str) -> None:
    function = compat_calls.FUNCTIONS[kind]
    arguments = {key: on_gpu(value) for key, value in function.calls[name].items()}
    if isinstance(arguments.get("tile_scheduler_metadata"), type(compat_calls.meta())):
        arguments["tile_scheduler_metadata"] = compat_calls.meta()
    got = function.function(**arguments)
    assert all(x.device.type == gpu_calls.DEVICE for x in got)
    found = moved_to(got, "cpu")
    if function.native.startswith("permute"):
        assert_same_bits(found, function.run(name))
    else:
        expected = getattr(oracle, function.native)(**compat_calls.native_arguments(function.calls[name]))
        oracle.assert_outputs(function.native, found, expected)


@flashmla_calls.each_flashmla
def test_flashmla_operator_is_the_native_one(name: str, args: Callable[[], Any], native: Call) -> None:
    got = flashmla_calls.tensors_of(flashmla_calls.flashmla(name)(*on_gpu(args())))
    gpu = moved(native)
    assert_same_bits(got, gpu.run()[: len(native.outputs)])
    assert_right(native._replace(op=native.op), gpu.run())


@pytest.mark.parametrize(
    ("name", "args", "place"),
    flashmla_calls.WITH_OUTPUTS.values(),
    ids=flashmla_calls.WITH_OUTPUTS.keys(),
)
def test_flashmla_operators_write_what_they_are_given(name: str, args: tuple[Any, ...], place: int) -> None:
    function, gpu_args = flashmla_calls.flashmla(name), list(on_gpu(args))
    guard = Guarded(gpu_args[place], without_gaps=True)
    gpu_args[place] = guard.view
    result = function(*gpu_args)
    assert result[0] is guard.view
    assert guard.neighbours_untouched()
    assert not (bits(guard.view) == SENTINEL).all()
    expected = function(*gpu_args[:place], None, *gpu_args[place + 1 :])
    assert torch.equal(bits(result[0]).flatten(), bits(expected[0]).flatten())
    assert_same_bits(flashmla_calls.tensors_of(result)[1:], flashmla_calls.tensors_of(expected)[1:])


def test_flashmla_dense_decode_takes_the_packed_output() -> None:
    q, cache = on_gpu(bf16(2, 3, HEADS, 576)), on_gpu(bf16(3, 4, 2, 576, seed=2))
    table, lengths = on_gpu(i32(2, 0, 1, 1).view(2, 2)), on_gpu(i32(7, 5))
    args = (q, cache, 512, lengths, table, 0.05, False, None, None)
    plain, lse, *_ = torch.ops._flashmla_C.dense_decode_fwd(*args)
    packed = torch.empty(2, 2, 6, 512, dtype=torch.bfloat16, device=gpu_calls.DEVICE)
    guard = Guarded(packed, without_gaps=True)
    got, got_lse, *_ = torch.ops._flashmla_C.dense_decode_fwd(*args, guard.view)
    assert got is guard.view
    expected = plain.view(2, 3, 2, 2, 512).transpose(1, 2).reshape(2, 2, 6, 512)
    assert_same_bits((got, got_lse), (expected, lse))
    assert guard.neighbours_untouched()


def test_flashmla_split_decode_merges_to_the_whole() -> None:
    args = on_gpu(flashmla_calls.flashmla_fused_decode())
    decode = torch.ops._flashmla_C.fused_norm_rope_attn_rope_cast_decode
    s_q = args[0].shape[0]
    accumulators = [torch.empty(3, s_q, HEADS, *d, device=gpu_calls.DEVICE) for d in ((512,), ())]
    decode(*args, None, None, 3, *accumulators)
    merged = ops.combine_partials_fused(*accumulators, None, True, ops_calls.GROUPS)
    native = moved(ops_calls.fused_decode(q_norm_eps=1e-6, num_splits=3))
    assert_same_bits(merged, native.run())
    assert torch.allclose(merged[2], decode(*args)[2], atol=1e-4)


def test_flashmla_metadata() -> None:
    lengths = on_gpu(i32(7, 5, 3))
    metadata, splits = torch.ops._flashmla_extension_C.get_mla_decoding_metadata_dense_fp8(lengths, 4, 1)
    assert (metadata.dtype, metadata.shape, metadata.device) == (torch.int32, (1, 8), lengths.device)
    assert (splits.dtype, splits.shape, splits.device) == (torch.int32, (4,), lengths.device)
    assert not metadata.any()
    assert not splits.any()


# ---- errors -------------------------------------------------------------------------------------------


def text_of_error(call: Callable[[], Any]) -> str:
    with pytest.raises(RuntimeError) as caught:
        call()
    assert type(caught.value) is RuntimeError
    return str(caught.value)


@each_serving_call
def test_a_tensor_of_another_device_is_refused(call: Call) -> None:
    gpu = moved(call)
    names = [argument.name for argument in call.functional._schema.arguments]
    arguments = {**dict(zip(names, gpu.args, strict=False)), **gpu.kwargs}
    on_cpu = named_tensors(call)
    first, *others = on_cpu
    for name in others:
        text = text_of_error(lambda name=name: gpu.functional(**{**arguments, name: on_cpu[name]}))
        assert text == f"{call.op}: {name} must be on cuda:0, got cpu"
    if others:
        # A call is for the device of its first tensor; the next one that is checked is elsewhere then.
        text = text_of_error(lambda: gpu.functional(**{**arguments, first: on_cpu[first]}))
        assert text in {f"{call.op}: {name} must be on cpu, got cuda:0" for name in others}


@each_serving_call
def test_an_output_of_another_device_is_refused_before_anything_is_written(call: Call) -> None:
    gpu = moved(call)
    for wrong in call.outputs:
        guards = ops_calls.guarded_outputs(gpu)
        outputs = {name: guard.view for name, guard in guards.items()}
        outputs[wrong] = moved_to(outputs[wrong], "cpu")
        text = text_of_error(lambda outputs=outputs: gpu.out(*gpu.args, **gpu.kwargs, **outputs))
        assert text == f"{call.op}: {wrong} must be on cuda:0, got cpu"
        assert ops_calls.nothing_written(guards.values())


def test_append_kv_refuses_mixed_devices() -> None:
    rows, cache, slots = bf16(3, 512), ops_calls.pages("v4_fp8"), i32(7, -1, 2)
    before = cache.clone()
    text = text_of_error(lambda: ops.append_kv(on_gpu(rows), cache, on_gpu(slots)))
    assert text == "append_kv: cache must be on cuda:0, got cpu"
    text = text_of_error(lambda: ops.append_kv(on_gpu(rows), on_gpu(cache), slots))
    assert text == "append_kv: slots must be on cuda:0, got cpu"
    assert torch.equal(cache, before)


def test_a_refused_call_is_not_saved_and_its_text_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Case files hold tensors of the host alone."""
    monkeypatch.setenv("TILEWISE_SAVE_ON_ERROR", os.fspath(tmp_path))
    gpu = moved(SERVING_CALLS["sparse_prefill_fwd"])
    text = text_of_error(lambda: gpu.functional(*gpu.args, d_v=256))
    assert text == "sparse_prefill_fwd: d_v must be 512, got 256"
    assert list(tmp_path.iterdir()) == []


def test_errors_name_the_gpus_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = moved(SERVING_CALLS["sparse_decode"])
    names = ops_calls.kernel_names("sparse_decode")
    assert names[0] == "cuda_portable"
    monkeypatch.setenv("TILEWISE_KERNEL", "no_such")
    listed = f"{', '.join(names[:-1])} or {names[-1]}"
    assert text_of_error(gpu.run) == f"sparse_decode: kernel must be {listed}, got no_such"
    monkeypatch.setenv("TILEWISE_KERNEL", "cpu_baseline")
    refused = "one that supports this call, got cpu_baseline: runs on the CPU, not on cuda:0"
    assert text_of_error(gpu.run) == f"sparse_decode: kernel must be {refused}"
    monkeypatch.setenv("TILEWISE_KERNEL", "cuda_portable")
    found = gpu.run()
    monkeypatch.delenv("TILEWISE_KERNEL")
    assert_right(SERVING_CALLS["sparse_decode"], found)
