"""Arguments that several functions read in the same way."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from flash_mla._errors import describe

UNBOUNDED = (-1, -1)


def first_sizes(tensor: torch.Tensor | None, n: int) -> tuple[int | None, ...]:
    """The first n sizes; None for those that are not there, which the operator then refuses."""
    shape = () if tensor is None else tuple(tensor.shape)
    return shape[:n] if len(shape) >= n else (*shape, *[None] * (n - len(shape)))


def default_scale(q: torch.Tensor) -> float:
    """d_qk ** -0.5; any number where there is no d_qk, which the operator then refuses."""
    d_qk = q.shape[-1] if q.dim() > 0 else 0
    return d_qk**-0.5 if d_qk > 0 else 1.0


def is_pair_of(value: object, kind: type | tuple[type, ...]) -> bool:
    """Whether it is a tuple or a list of two such values."""
    is_pair = isinstance(value, (tuple, list)) and len(value) == 2
    return is_pair and isinstance(value[0], kind) and isinstance(value[1], kind)


def tensor_pair(
    function: str, name: str, parts: str, value: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The two tensors of an argument that is a pair; `parts` says of what."""
    if not is_pair_of(value, torch.Tensor):
        raise TypeError(f"{function}: {name} must be the pair {parts}, got {describe(value)}")
    return value[0], value[1]


def window_pair(function: str, window_size: Sequence[int] | int | None) -> tuple[int, int]:
    """The pair (left, right) of a window: a pair, None (off), or W keys that end at the query (0: off)."""
    if window_size is None:
        return UNBOUNDED
    if isinstance(window_size, int):
        return (window_size - 1, 0) if window_size > 0 else UNBOUNDED
    if is_pair_of(window_size, int):
        return window_size[0], window_size[1]
    raise TypeError(
        f"{function}: window_size must be a pair (left, right), a number of keys or None, "
        f"got {describe(window_size)}"
    )


def record_pair(function: str, kv_format: str | Sequence[str | None] | None) -> tuple[str | None, str | None]:
    """The records of the main and of the extra cache by name; None: found by the bytes of a token."""
    if kv_format is None or isinstance(kv_format, str):
        return kv_format, None
    if is_pair_of(kv_format, (str, type(None))):
        return kv_format[0], kv_format[1]
    raise TypeError(
        f"{function}: kv_format must be a record's name or a pair of names (main, extra), "
        f"got {describe(kv_format)}"
    )
