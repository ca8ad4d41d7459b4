"""Reading and writing the records of paged caches."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from tilewise._operator import Operator, in_dual_level, refuse_grad, refuse_tangents

_QUANTIZE_KV = Operator("quantize_kv")
_DEQUANTIZE_KV = Operator("dequantize_kv")
_APPEND_KV = torch.ops.tilewise.append_kv.default


def quantize_kv(x: Tensor, record: str, page: int, *, pages: Tensor | None = None) -> Tensor:
    """Writes rows into new pages of a record, one after another (docs/operators.md, section 9).

    Args:
        x: [n, d] bfloat16; d is the record's (576 or 512 for "bf16").
        record: a record of docs/kv-formats.md.
        page: tokens of a page.
        pages: [ceil(n / page), page, 1, bytes], uint8, int8 or float8_e4m3fn (bfloat16 for "bf16"),
            contiguous inside a page, the block stride a multiple of 16 bytes.

    Returns:
        pages; the last page is filled up with zero rows.

    Raises:
        RuntimeError: an argument is not as above, or requires grad. Nothing has been written then.
    """
    result = _QUANTIZE_KV.call((x, record, page), (pages,))
    return result if pages is None else pages


def dequantize_kv(pages: Tensor, record: str, *, x: Tensor | None = None) -> Tensor:
    """Reads all rows of the pages of a record (docs/operators.md, section 9).

    Args:
        pages: [num_blocks, page, 1, bytes], uint8, int8 or float8_e4m3fn (bfloat16 for "bf16").
        record: a record of docs/kv-formats.md.
        x: [num_blocks * page, d] bfloat16.

    Returns:
        x, the values that attention over these pages computes with.

    Raises:
        RuntimeError: an argument is not as above, or requires grad. Nothing has been written then.
    """
    result = _DEQUANTIZE_KV.call((pages, record), (x,))
    return result if x is None else x


def append_kv(kv: Tensor, cache: Tensor, slots: Tensor, record: str | None = None) -> None:
    """Writes rows into a cache at given slots (docs/operators.md, section 9).

    Args:
        kv: [n, d] bfloat16; d is the record's.
        cache: [num_blocks, page, 1, bytes], written.
        slots: [n] int32 or int64, ``block * page + offset`` each; a slot that does not exist, such as -1, is
            skipped.
        record: a record of docs/kv-formats.md; None: the one that the width tells.

    Raises:
        RuntimeError: an argument is not as above, or requires grad. Nothing has been written then.
    """
    tensors = {"kv": kv, "cache": cache}
    if in_dual_level():
        refuse_tangents("append_kv", tensors)
    if torch.is_grad_enabled():
        refuse_grad("append_kv", tensors)
    _APPEND_KV(kv, cache, slots, record)
    increment_version(cache)
