"""How many threads CPU operators use."""

from __future__ import annotations

import torch

_SET = torch.ops.tilewise.set_num_threads.default
_GET = torch.ops.tilewise.get_num_threads.default


def set_num_threads(n: int) -> None:
    """Sets the number of threads of CPU operators, for all Python threads; 0: follow torch's own number.

    Raises:
        RuntimeError: n is negative, or more than the library can use.
    """
    _SET(n)


def get_num_threads() -> int:
    """The number of threads that CPU operators use; torch.get_num_threads() unless another one was set."""
    return _GET()
