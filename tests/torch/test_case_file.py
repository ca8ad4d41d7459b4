"""Files that tilewise.case_file writes: the built program replays every operator's call from them.

TILEWISE_PROGRAM must name the program `tilewise` of the build.
"""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ops_calls
import pytest
import tilewise
import torch
from tilewise import save_case

ops = torch.ops.tilewise


@pytest.fixture(scope="session")
def program() -> str:
    path = os.environ.get("TILEWISE_PROGRAM", "")
    assert Path(path).is_file(), f"TILEWISE_PROGRAM must name the built program, got {path!r}"
    return path


def arguments_of(call: ops_calls.Call) -> dict[str, Any]:
    names = [a.name for a in call.functional._schema.arguments]
    return dict(zip(names, call.args, strict=False)) | call.kwargs


def append_kv_arguments(**more: Any) -> dict[str, Any]:
    cache = ops_calls.pages("v32_fp8")
    slots = torch.tensor([5, -1, 0, 5], dtype=torch.int64)
    return {"kv": ops_calls.bf16(4, 576, seed=7), "cache": cache, "slots": slots, **more}


def replay(program: str, path: Path, *more: str) -> tuple[int, str, dict[str, Any]]:
    """Exit status, what was printed, and the JSON report."""
    report = path.with_suffix(".json")
    command = [program, "replay", str(path), "--json", str(report), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (
        done.returncode,
        done.stdout + done.stderr,
        json.loads(report.read_text()) if report.exists() else {},
    )


def assert_replays(program: str, path: Path, op: str) -> None:
    status, text, report = replay(program, path)
    assert status == 0, text
    assert report["operator"] == op
    assert report["ok"] and report["has_data"]
    ran = [kernel for kernel in report["kernels"] if "refusal" not in kernel]
    assert ran
    for kernel in ran:
        assert kernel["outputs"]


def header_of(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def tensors_of(path: Path) -> dict[str, Any]:
    return json.loads(header_of(path)["__metadata__"]["tensors"])


@ops_calls.each_call
def test_every_call_replays(call: ops_calls.Call, program: str, tmp_path: Path) -> None:
    path = tmp_path / "call.safetensors"
    save_case(path, call.op, **arguments_of(call))
    assert_replays(program, path, call.op)


@pytest.mark.parametrize("record", [None, "v32_fp8"])
def test_append_kv_replays(record: str | None, program: str, tmp_path: Path) -> None:
    path = tmp_path / "call.safetensors"
    save_case(path, "append_kv", **append_kv_arguments(record=record))
    assert_replays(program, path, "append_kv")
    assert set(tensors_of(path)) == {"kv", "cache", "slots"}


def test_invert_block_selection_replays(program: str, tmp_path: Path) -> None:
    path = tmp_path / "call.safetensors"
    save_case(path, "invert_block_selection", q2k=ops_calls.selection(), num_kv_blocks=3)
    assert_replays(program, path, "invert_block_selection")
    assert set(tensors_of(path)) == {"q2k", "row_ptr", "q_blocks"}


def test_every_operator_is_covered() -> None:
    names = {
        schema.name.removeprefix("tilewise::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("tilewise::")
    }
    no_calls = {"set_num_threads", "get_num_threads", "noop", "append_kv", "invert_block_selection"}
    plans = {"dense_decode_plan", "sparse_decode_plan"}
    assert names - no_calls - plans - ops_calls.NO_GRAD == {call.op for call in ops_calls.CALLS.values()}


def test_contents_and_options_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "call.safetensors"
    call = ops_calls.dense_decode(causal=True, window=[2, 0])
    save_case(path, call.op, **arguments_of(call))
    header = header_of(path)
    assert json.loads(header["__metadata__"]["options"]) == {
        "softmax_scale": 0.05,
        "d_v": 512,
        "causal": True,
        "window": [2, 0],
        "batch_invariant": False,
    }
    assert header["q"]["dtype"] == "BF16"
    begin, end = header["q"]["data_offsets"]
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    assert start % 8 == 0
    stored = torch.frombuffer(bytearray(data[start + begin : start + end]), dtype=torch.bfloat16)
    assert torch.equal(stored.view(call.args[0].shape), call.args[0])
    assert set(header) == {"__metadata__", "q", "k_cache", "block_table", "cache_seqlens"}


def test_views_keep_their_strides_and_places(program: str, tmp_path: Path) -> None:
    path = tmp_path / "call.safetensors"
    both = ops_calls.bf16(5, ops_calls.HEADS, 576 + 512)
    call = ops_calls.sparse_prefill_fwd()
    arguments = arguments_of(call) | {"q": both[..., :576], "out": both[..., 576:]}
    save_case(path, call.op, **arguments)
    tensors = tensors_of(path)
    assert tensors["q"]["strides"] == list(both.stride())
    assert tensors["out"]["strides"] == list(both.stride())
    assert tensors["q"]["memory"] == tensors["out"]["memory"]
    assert tensors["out"]["at"] - tensors["q"]["at"] == 576 * 2
    assert_replays(program, path, call.op)


def test_expanded_inputs(program: str, tmp_path: Path) -> None:
    path = tmp_path / "call.safetensors"
    call = ops_calls.sparse_prefill_fwd()
    arguments = arguments_of(call)
    arguments["indices"] = arguments["indices"][:1].expand(5, -1, -1)
    save_case(path, call.op, **arguments)
    assert tensors_of(path)["indices"]["strides"][0] == 0
    assert_replays(program, path, call.op)


def test_a_refused_call_is_refused_with_torchs_text(program: str, tmp_path: Path) -> None:
    path = tmp_path / "call.safetensors"
    call = ops_calls.sparse_prefill_fwd()
    arguments = arguments_of(call) | {"softmax_scale": math.inf}
    with pytest.raises(RuntimeError) as raised:
        ops.sparse_prefill_fwd(**arguments)
    save_case(path, call.op, **arguments)
    status, text, report = replay(program, path)
    assert status == 1
    assert report["refusal"] == "sparse_prefill_fwd: softmax_scale must be finite, got inf"
    assert report["refusal"] in str(raised.value)
    assert "refused: " + report["refusal"] in text


def test_wrong_shapes_are_saved_as_well(program: str, tmp_path: Path) -> None:
    path = tmp_path / "call.safetensors"
    call = ops_calls.sparse_prefill_fwd()
    save_case(path, call.op, **(arguments_of(call) | {"q": ops_calls.bf16(5, 576)}))
    status, _text, report = replay(program, path)
    assert status == 1
    assert report["refusal"] == (
        "sparse_prefill_fwd: q must be bfloat16 [s_q, h_q, 576 or 512], got bfloat16 [5, 576]"
    )


@pytest.mark.parametrize("function", [ops.sparse_prefill_fwd, tilewise.sparse_prefill_fwd])
def test_a_call_that_raises_saves_itself(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any]
) -> None:
    call = ops_calls.sparse_prefill_fwd()
    arguments = arguments_of(call) | {"indices": ops_calls.indices(4, 1, 6, below=9)}
    with pytest.raises(RuntimeError) as before:
        function(**arguments)
    monkeypatch.setenv("TILEWISE_SAVE_ON_ERROR", str(tmp_path))
    with pytest.raises(RuntimeError) as after:
        function(**arguments)
    monkeypatch.delenv("TILEWISE_SAVE_ON_ERROR")
    assert str(after.value) == str(before.value)
    (path,) = tmp_path.glob(f"sparse_prefill_fwd-*-{os.getpid()}.safetensors")
    status, _text, report = replay(program, path)
    assert status == 1
    assert report["refusal"] == (
        "sparse_prefill_fwd: indices must be int32 [5, 1, topk], got int32 [4, 1, 6]"
    )


def test_no_half_of_a_file_is_left_behind(tmp_path: Path) -> None:
    arguments = arguments_of(ops_calls.dequantize_kv("v4_fp8"))
    arguments["pages"] = arguments["pages"].to("meta")  # has no contents to write
    with pytest.raises(NotImplementedError):
        save_case(tmp_path / "call", "dequantize_kv", **arguments)
    assert not list(tmp_path.iterdir())


def test_an_earlier_file_outlives_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "call"
    arguments = arguments_of(ops_calls.dequantize_kv("v4_fp8"))
    save_case(path, "dequantize_kv", **arguments)
    before = path.read_bytes()
    arguments["pages"] = arguments["pages"].to("meta")
    with pytest.raises(NotImplementedError):
        save_case(path, "dequantize_kv", **arguments)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_only_operators_are_saved(tmp_path: Path) -> None:
    text = "save_case: op must be the name of an operator, got 'get_num_threads'"
    with pytest.raises(ValueError, match=text):
        save_case(tmp_path / "call", "get_num_threads")


def parts_of(path: Path) -> dict[str, Any]:
    """All that a file says, whatever the order and the spelling of its header."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = header_of(path)
    metadata = header.pop("__metadata__")
    options = json.loads(metadata["options"])
    for name, value in options.items():
        if isinstance(value, float):
            options[name] = struct.pack("f", value)
    contents = {
        name: (
            entry["dtype"],
            entry["shape"],
            data[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]],
        )
        for name, entry in header.items()
    }
    return {
        "version": metadata["tilewise_case"],
        "operator": metadata["operator"],
        "data": metadata["data"],
        "options": options,
        "tensors": json.loads(metadata["tensors"]),
        "memory": json.loads(metadata["memory"]),
        "contents": contents,
    }


@ops_calls.each_call
def test_files_are_those_of_the_library(
    call: ops_calls.Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The library saves a call that it refuses: here for an output that is too short.
    outputs = {name: value.clone() for name, value in zip(call.outputs, call.run(), strict=False)}
    last = call.outputs[-1]
    outputs[last] = outputs[last][:-1]
    monkeypatch.setenv("TILEWISE_SAVE_ON_ERROR", str(tmp_path))
    with pytest.raises(RuntimeError):
        call.out(*call.args, **call.kwargs, **outputs)
    monkeypatch.delenv("TILEWISE_SAVE_ON_ERROR")
    (saved,) = tmp_path.iterdir()
    save_case(tmp_path / "call", call.op, **arguments_of(call), **outputs)
    assert parts_of(tmp_path / "call") == parts_of(saved)


def test_wrong_names(tmp_path: Path) -> None:
    path = tmp_path / "call.safetensors"
    call = arguments_of(ops_calls.dequantize_kv("v4_fp8"))
    with pytest.raises(ValueError) as no_operator:
        save_case(path, "softmax", **call)
    assert str(no_operator.value) == "save_case: op must be the name of an operator, got 'softmax'"
    with pytest.raises(TypeError) as unknown:
        save_case(path, "dequantize_kv", **call, scale=1.0)
    assert str(unknown.value) == "save_case: dequantize_kv has no argument 'scale'; it has pages, record, x"
    with pytest.raises(TypeError) as missing:
        save_case(path, "dequantize_kv", record="v4_fp8")
    assert str(missing.value) == "save_case: dequantize_kv needs the argument 'pages'"
    with pytest.raises(TypeError) as no_tensor:
        save_case(path, "dequantize_kv", pages=[1, 2], record="v4_fp8")
    assert str(no_tensor.value) == "save_case: pages must be a tensor, got list"
    with pytest.raises(FileNotFoundError):
        save_case(tmp_path / "none" / "call", "dequantize_kv", **call)
    assert not list(tmp_path.iterdir())
