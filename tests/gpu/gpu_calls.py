"""Calls with tensors on the GPU, copies of the host's, and the oracle's word on what they return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import oracle
import tilewise
import torch
from ops_calls import Call, assert_same_bits

DEVICE = "cuda"
# Outputs whose bits two backends share; the others are rounded differently on the way.
EXACT = ("quantize_kv", "dequantize_kv", "append_kv", "permute_q_b_proj", "permute_wv_proj")
# Arguments that a function of the package writes.
WRITTEN = ("out_bf16", "cache")


def memory(x: torch.Tensor) -> torch.Tensor:
    """The bytes of the storage that a tensor is a view of."""
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())


def moved_to(value: Any, device: str) -> Any:
    """A copy of a tensor's whole memory, with the strides and gaps it has; also of tensors in a pair."""
    if type(value) in (tuple, list):
        return type(value)(moved_to(one, device) for one in value)
    if not isinstance(value, torch.Tensor):
        return value
    copy = memory(value).to(device, copy=True).view(value.dtype)
    return copy.as_strided(value.shape, value.stride(), value.storage_offset())


def on_gpu(value: Any) -> Any:
    return moved_to(value, DEVICE)


def moved(call: Call) -> Call:
    kwargs = {name: on_gpu(value) for name, value in call.kwargs.items()}
    return call._replace(args=on_gpu(call.args), kwargs=kwargs)


def tensors_of(call: Call) -> list[torch.Tensor]:
    values = [*call.args, *call.kwargs.values()]
    return [value for value in values if isinstance(value, torch.Tensor)]


def named_tensors(call: Call) -> dict[str, torch.Tensor]:
    names = [argument.name for argument in call.functional._schema.arguments]
    arguments = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    return {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}


def assert_right(call: Call, got: tuple[torch.Tensor, ...]) -> None:
    """Outputs of a call, `call` being the host's: what moves bytes bit for bit as the CPU does it, the others
    within the bound that tests/torch/oracle.py computes."""
    on_cpu = call.run()
    assert [(x.dtype, x.shape, x.stride(), x.is_cuda) for x in got] == [
        (x.dtype, x.shape, x.stride(), DEVICE == "cuda") for x in on_cpu
    ]
    found = moved_to(got, "cpu")
    if call.op in EXACT:
        assert_same_bits(found, on_cpu)
    elif call.op == "fused_decode_partials":
        options = {name: value for name, value in call.kwargs.items() if name != "num_splits"}
        exact, rounded = oracle.fused_decode(*call.args, **options)
        merged = oracle.combine_partials(*found, base2=True).exact
        oracle.assert_rows(merged.out, exact.out, rounded.out)
        oracle.assert_logs(merged.lse.float(), exact.lse)
    else:
        kwargs = dict(call.kwargs)
        if call.op == "combine_partials_fused":
            kwargs.pop("n_groups")
        name = "combine_partials" if call.op.startswith("combine") else call.op
        oracle.assert_outputs(call.op, found, getattr(oracle, name)(*call.args, **kwargs))


class PackageOnGpu:
    """The package's functions for tensors on the host: each call works on copies on the GPU, must leave those
    that it reads as they are, and brings back what it writes and returns."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(tilewise, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            names = list(function.__code__.co_varnames[: len(args)])
            given = {**dict(zip(names, args, strict=True)), **kwargs}
            copies = {key: on_gpu(value) for key, value in given.items()}
            result = function(**copies)
            for key, value in given.items():
                if not isinstance(value, torch.Tensor):
                    continue
                after = memory(copies[key]).cpu()
                if key in WRITTEN:
                    memory(value).copy_(after)
                else:
                    assert torch.equal(memory(value), after), f"{name} wrote {key}"
            return moved_to(result, "cpu")

        return call
