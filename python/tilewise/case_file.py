"""Case files: one call of one operator, with its tensors, in a file that `tilewise replay` runs again.

The layout is that of the library's own save_case (docs/case-files.md): a safetensors file whose metadata hold
the operator's name, its options, and how each tensor lies in memory.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tilewise import _ops

_ADDRESS_UNIT = 64  # addresses are kept modulo this
_HEADER_UNIT = 8  # bytes

# Element types by torch's name: what safetensors calls them, and an integer type of their size.
_STORED_TYPES = {
    "bfloat16": ("BF16", torch.int16),
    "float16": ("F16", torch.int16),
    "float32": ("F32", torch.int32),
    "float64": ("F64", torch.int64),
    "float8_e4m3fn": ("F8_E4M3", torch.uint8),
    "float8_e8m0fnu": ("F8_E8M0", torch.uint8),
    "float4_e2m1fn_x2": ("U8", torch.uint8),
    "int8": ("I8", torch.uint8),
    "uint8": ("U8", torch.uint8),
    "int32": ("I32", torch.int32),
    "int64": ("I64", torch.int64),
    "bool": ("BOOL", torch.uint8),
}
_UNKNOWN_TYPE = "an unknown type"

# Arguments of torch's operators that are no part of the call: plans are made again, the number of splits
# changes no result (but that of the partial ones), the page size and kl_target show in the outputs.
_NOT_SAVED = {"plan", "num_splits", "page", "kl_target"}
_SAVED_AFTER_ALL = {("fused_decode_partials", "num_splits")}

# Outputs that are there with one of the arguments alone.
_OUTPUTS_WITH_OPTION = {"lse_indexer": "indexer_topk", "d_sink": "sink_bias", "kl_target": "kl_target"}
# What the library calls outputs of another name.
_NAMES_IN_FILE = {"kl_target_out": "kl_target"}


class _Operator(NamedTuple):
    """What torch knows of an operator and of its overload that takes outputs."""

    name: str
    arguments: list[Any]
    outputs: list[Any]

    @property
    def required(self) -> list[str]:
        return [a.name for a in self.arguments if not a.has_default_value()]


class _Tensor(NamedTuple):
    name: str
    value: torch.Tensor
    stored: bool  # outputs are not

    @property
    def dtype(self) -> str:
        name = str(self.value.dtype).removeprefix("torch.")
        return name if name in _STORED_TYPES else _UNKNOWN_TYPE

    @property
    def has_memory(self) -> bool:
        return self.value.numel() > 0 and self.dtype != _UNKNOWN_TYPE

    @property
    def bytes(self) -> int:
        return self.value.numel() * self.value.element_size()

    def extent(self) -> int:
        """Bytes from the first element to the end of the last one."""
        steps = zip(self.value.shape, self.value.stride(), strict=True)
        last = sum((size - 1) * stride for size, stride in steps)
        return (last + 1) * self.value.element_size()

    def contents(self) -> bytes:
        as_integers = self.value.detach().view(_STORED_TYPES[self.dtype][1])
        packed = as_integers.contiguous().cpu()
        return ctypes.string_at(packed.data_ptr(), self.bytes)


class _Memory:
    """The memory of a call.

    Tensors whose bytes lie among each other's share a piece; outputs still to be allocated get one each.
    """

    def __init__(self, tensors: list[_Tensor]) -> None:
        self.pieces: list[dict[str, int]] = []
        self.places: dict[str, tuple[int, int]] = {}  # by tensor: its piece, and the byte there
        there = [t for t in tensors if t.has_memory and not isinstance(t.value, FakeTensor)]
        start = end = -1
        for tensor in sorted(there, key=lambda t: t.value.data_ptr()):
            first = tensor.value.data_ptr()
            if first >= end:
                start = end = first
                self.pieces.append({"bytes": 0, "past": first % _ADDRESS_UNIT})
            end = max(end, first + tensor.extent())
            self.pieces[-1]["bytes"] = end - start
            self.places[tensor.name] = (len(self.pieces) - 1, first - start)
        for tensor in tensors:
            if tensor.has_memory and isinstance(tensor.value, FakeTensor):
                self.places[tensor.name] = (len(self.pieces), 0)
                self.pieces.append({"bytes": tensor.extent(), "past": 0})

    def describe(self, tensor: _Tensor) -> dict[str, Any]:
        piece, at = self.places.get(tensor.name, (None, 0))
        return {
            "dtype": tensor.dtype,
            "shape": list(tensor.value.shape),
            "strides": list(tensor.value.stride()),
            "memory": piece,
            "at": at,
        }


def _find_operator(op: str) -> _Operator:
    packet = getattr(torch.ops.tilewise, op, None)
    if packet is None or op not in {*_ops.OUTPUTS, "append_kv"}:
        raise ValueError(f"save_case: op must be the name of an operator, got {op!r}")
    arguments = list(packet.default._schema.arguments)
    outputs = []
    if "out" in packet.overloads():
        known = {a.name for a in arguments}
        outputs = [a for a in packet.out._schema.arguments if a.name not in known]
    return _Operator(op, arguments, outputs)


def _check_names(operator: _Operator, given: dict[str, Any]) -> None:
    known = [a.name for a in operator.arguments + operator.outputs]
    for name in given:
        if name not in known:
            raise TypeError(f"save_case: {operator.name} has no argument {name!r}; it has {', '.join(known)}")
    for name in operator.required:
        if name not in given:
            raise TypeError(f"save_case: {operator.name} needs the argument {name!r}")


def _allocated_outputs(operator: _Operator, values: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The outputs that the operator would allocate, by name, without memory.

    None where a call is wrong in a way that leaves their shapes unknown: its replay ends before an output is
    asked for.
    """
    if not operator.outputs:
        return {}
    default = getattr(torch.ops.tilewise, operator.name).default
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for v in values.values()]
        try:
            results = [look.new(fake[0]) for look in _ops.OUTPUTS[operator.name](*fake)]
        except Exception:
            return {}
    names = [r.name for r in default._schema.returns]
    by_name = dict(zip(names, results, strict=True))
    for name, option in _OUTPUTS_WITH_OPTION.items():
        wanted = values.get(option)
        if wanted is None or (not isinstance(wanted, torch.Tensor) and not wanted):
            by_name.pop(name, None)
    return by_name


def _option(argument: Any, value: Any) -> Any:
    """An option as the file has it."""
    kind = str(argument.type)
    if argument.name in ("record", "extra_record"):
        return "auto" if value is None else value
    if value is None:
        return None
    if kind.startswith("List"):
        return [int(v) for v in value]
    if kind == "bool":
        return bool(value)
    if kind == "int":
        return int(value)
    number = float(value)
    if math.isfinite(number):
        return number
    return "nan" if math.isnan(number) else "inf" if number > 0 else "-inf"


def _split(operator: _Operator, given: dict[str, Any]) -> tuple[dict[str, Any], list[_Tensor]]:
    """The options and the tensors of a call."""
    values = {a.name: given.get(a.name, a.default_value) for a in operator.arguments}
    options: dict[str, Any] = {}
    tensors: list[_Tensor] = []
    for argument in operator.arguments:
        name, value = argument.name, values[argument.name]
        is_tensor = "Tensor" in str(argument.type)
        if is_tensor and value is not None and not isinstance(value, torch.Tensor):
            raise TypeError(f"save_case: {name} must be a tensor, got {type(value).__name__}")
        if name in _NOT_SAVED and (operator.name, name) not in _SAVED_AFTER_ALL:
            continue
        if not is_tensor:
            options[name] = _option(argument, value)
        elif value is not None:
            tensors.append(_Tensor(name, value, stored=True))
    outputs = _allocated_outputs(operator, values)
    outputs.update(
        {
            _NAMES_IN_FILE.get(a.name, a.name): given[a.name]
            for a in operator.outputs
            if given.get(a.name) is not None
        }
    )
    tensors += [_Tensor(name, value, stored=False) for name, value in outputs.items()]
    return options, tensors


def save_case(path: str | os.PathLike[str], op: str, **arguments: Any) -> None:
    """Writes a call of an operator into a case file.

    ``tilewise replay FILE`` runs it by every kernel, compares the results with the oracle and times them.

    Args:
        path: the file to write, usually ``*.safetensors``; a file that is there is replaced.
        op: the operator's name, such as ``"sparse_decode"``.
        arguments: what ``torch.ops.tilewise.<op>`` takes, by name; also outputs (``out=``, ``lse=``, ...),
            which are saved by shape and strides alone. Tensors may lie on any device and may be views:
            dtypes, shapes and strides are kept, and so is what shares memory.

    Raises:
        ValueError: there is no such operator.
        TypeError: an argument is missing, has an unknown name, or is no tensor where one is needed.
            Nothing else about the call is judged: calls that the operator refuses can be saved.
        OSError: the file cannot be written. No half of one is left behind.
    """
    operator = _find_operator(op)
    _check_names(operator, arguments)
    options, tensors = _split(operator, arguments)
    memory = _Memory(tensors)
    header: dict[str, Any] = {
        "__metadata__": {
            "tilewise_case": "1",
            "operator": op,
            "data": "saved",
            "options": json.dumps(options, allow_nan=False),
            "tensors": json.dumps({t.name: memory.describe(t) for t in tensors}),
            "memory": json.dumps(memory.pieces),
        }
    }
    stored = [t for t in tensors if t.stored and t.has_memory]
    end = 0
    for tensor in stored:
        begin, end = end, end + tensor.bytes
        header[tensor.name] = {
            "dtype": _STORED_TYPES[tensor.dtype][0],
            "shape": list(tensor.value.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % _HEADER_UNIT)
    # Whole, or not at all: what was at `path` stays until the file is written.
    unfinished = Path(f"{os.fspath(path)}.unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(len(text).to_bytes(8, "little"))
            file.write(text)
            for tensor in stored:
                file.write(tensor.contents())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
