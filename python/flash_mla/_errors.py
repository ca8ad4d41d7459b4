"""Errors of this package: ``<function>: <argument> must be <expected>, got <what came>``.

The native operators check the calls. What they refuse is raised again under the names of the function that
was called and of its own arguments. All of this happens after something was raised: a good call pays for one
more Python call, and for nothing else.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

_UNIONS = (typing.Union, types.UnionType)
_TYPE_TEXTS = {
    torch.Tensor: "a tensor",
    float: "a number",
    int: "a whole number",
    bool: "True or False",
    type(None): "None",
}


def describe(value: object) -> str:
    """A value as error texts show it: a tensor by type and shape."""
    if value is None:
        return "nothing"
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(describe, value))})"
    if isinstance(value, (bool, int, float, str)):
        return repr(value)
    return type(value).__name__


def _fits(value: object, allowed: tuple[Any, ...]) -> bool:
    return isinstance(value, allowed) or (float in allowed and isinstance(value, int))


def _refuse_type(function: Callable[..., object], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises TypeError for the first argument that is not of its annotated type."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return  # an argument is missing or unknown, which Python has said
    hints = typing.get_type_hints(function)
    for name, value in bound.arguments.items():
        hint = hints.get(name)
        allowed = typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)
        if not all(kind in _TYPE_TEXTS for kind in allowed) or _fits(value, allowed):
            continue
        expected = " or ".join(_TYPE_TEXTS[kind] for kind in allowed)
        raise TypeError(f"{function.__name__}: {name} must be {expected}, got {describe(value)}") from None


def _renamed(text: str, function: str, names: Mapping[str, str]) -> str:
    _, _, rest = text.partition(": ")
    phrases = "|".join(map(re.escape, names))
    return f"{function}: " + re.sub(rf"\b(?:{phrases})\b", lambda match: names[match[0]], rest)


def named_errors(
    operators: tuple[str, ...], names: Mapping[str, str]
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Lets a function's errors speak of the function and of its arguments.

    Args:
        operators: the native operators that the function calls.
        names: what the function calls their arguments, by native name. A name that is also a word of the
            texts is given with the word that follows it where it is an argument: ``"record must"``.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except (RuntimeError, TypeError, ValueError, AttributeError) as error:
                text = str(error)
                speaker = text.partition(": ")[0]
                if speaker in operators:
                    raise type(error)(_renamed(text, function.__name__, names)) from None
                if speaker != function.__name__:
                    _refuse_type(function, args, kwargs)
                raise

        return call

    return decorate
