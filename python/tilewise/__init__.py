"""tilewise: attention, tile by tile."""

from tilewise import _ops

__version__ = _ops.VERSION
