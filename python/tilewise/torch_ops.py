"""torch.ops.tilewise under a name that type checkers know: torch_ops.pyi has the signatures."""

from __future__ import annotations

import torch

from tilewise import _ops

__all__ = list(_ops.operator_names())

for _name in __all__:
    globals()[_name] = getattr(torch.ops.tilewise, _name)
