"""What the tests of refusals share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest


class Case(NamedTuple):
    """A call that is refused, with what it raises; the text without the function's name in front."""

    function: Callable[..., Any]
    call: dict[str, Any]
    error: type[Exception]
    text: str


def with_names(**tables: dict[str, Case]) -> dict[str, Case]:
    return {f"{kind}: {name}": case for kind, table in tables.items() for name, case in table.items()}


def assert_text(case: Case) -> None:
    with pytest.raises(case.error) as caught:
        case.function(**case.call)
    assert type(caught.value) is case.error
    assert str(caught.value) == f"{case.function.__name__}: {case.text}"
