"""The records of paged caches once more, in plain torch: rows to bytes and back (docs/kv-formats.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

E4M3 = torch.float8_e4m3fn
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
ROPE = 64


class Parts(NamedTuple):
    """The pieces of [n, ...] rows as bytes; each record has some of them."""

    data: Tensor
    scales: Tensor
    rope: Tensor


class Record(NamedTuple):
    d: int
    planes: tuple[tuple[str, ...], ...]  # the pieces of each plane, in order
    widths: dict[str, int]  # bytes of each piece
    encode: Callable[[Tensor], Parts]
    decode: Callable[[Parts], Tensor]

    @property
    def bytes(self) -> int:
        return sum(self.widths.values())


def as_bytes(x: Tensor) -> Tensor:
    return x.contiguous().view(torch.uint8)


def of_bytes(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.contiguous().view(dtype)


def ceil_log2(x: Tensor) -> Tensor:
    mantissa, exponent = torch.frexp(x.double())
    return torch.where(mantissa == 0.5, exponent - 1, exponent)


def to_e4m3(x: Tensor) -> Tensor:
    return x.clamp(-448, 448).float().to(E4M3)


def groups_of(x: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """[n, groups, size] float64, the groups' largest magnitudes, and which have a NaN or an inf."""
    groups = x.double().unflatten(-1, (-1, size))
    bad = ~groups.isfinite().all(-1)
    return groups, torch.where(bad, 0, groups.abs().amax(-1)), bad


def only_signs(x: Tensor, bad: Tensor) -> Tensor:
    """Groups without a scale keep the signs of their elements alone."""
    return torch.where(bad[..., None], torch.where(x.signbit(), -0.0, 0.0).double(), x)


# ---- e4m3 data ----------------------------------------------------------------------------------------


def encode_fp8(x: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [n, d], the exponents of their scales and which of these are NaN [n, d / size]."""
    groups, amax, bad = groups_of(x, size)
    exponent = ceil_log2((amax / 448).clamp(min=1e-4))
    scaled = only_signs(groups, bad) / torch.exp2(exponent.double())[..., None]
    return as_bytes(to_e4m3(scaled.flatten(-2))), exponent, bad


def fp8_with_float_scales(columns: int, size: int, has_rope: bool) -> tuple[Callable, Callable]:
    def encode(x: Tensor) -> Parts:
        codes, exponent, bad = encode_fp8(x[:, :columns], size)
        scales = torch.where(bad, torch.nan, torch.exp2(exponent.double())).float()
        return Parts(codes, as_bytes(scales), as_bytes(x[:, columns:]))

    def decode(parts: Parts) -> Tensor:
        scales = of_bytes(parts.scales, torch.float32)
        values = of_bytes(parts.data, E4M3).float() * scales.repeat_interleave(size, 1)
        rope = of_bytes(parts.rope, torch.bfloat16) if has_rope else values[:, :0]
        return torch.cat([values.bfloat16(), rope.bfloat16()], 1)

    return encode, decode


def fp8_with_exponents(columns: int, size: int, padding: int, has_rope: bool) -> tuple[Callable, Callable]:
    def encode(x: Tensor) -> Parts:
        codes, exponent, bad = encode_fp8(x[:, :columns], size)
        scales = torch.where(bad, 0xFF, exponent + 127).to(torch.uint8)
        return Parts(codes, torch.nn.functional.pad(scales, (0, padding)), as_bytes(x[:, columns:]))

    def decode(parts: Parts) -> Tensor:
        exponents = parts.scales[:, : columns // size].float()
        scales = torch.where(exponents == 0xFF, torch.nan, torch.exp2(exponents - 127))
        values = of_bytes(parts.data, E4M3).float() * scales.repeat_interleave(size, 1)
        rope = of_bytes(parts.rope, torch.bfloat16) if has_rope else values[:, :0]
        return torch.cat([values.bfloat16(), rope.bfloat16()], 1)

    return encode, decode


# ---- e2m1 data ----------------------------------------------------------------------------------------


def to_e2m1(x: Tensor, keeps_sign_of_zero: Tensor) -> Tensor:
    """Codes of [...] values: to the nearest, ties to the even code, at most 6."""
    table = torch.tensor(E2M1, dtype=torch.float64)
    between = (table[1:] + table[:-1]) / 2
    magnitude = x.abs()
    code = torch.searchsorted(between, magnitude)  # at a tie the lower code
    tie = (magnitude[..., None] == between).any(-1)
    code = torch.where(tie & (code % 2 == 1), code + 1, code)
    negative = x.signbit() & ((x != 0) | keeps_sign_of_zero)
    return (code + 8 * negative).to(torch.uint8)


def pack_nibbles(codes: Tensor) -> Tensor:
    return codes[:, ::2] | (codes[:, 1::2] << 4)


def unpack_nibbles(data: Tensor) -> Tensor:
    """The values [n, 2 * bytes] float32."""
    codes = torch.stack([data & 15, data >> 4], -1).flatten(1)
    values = torch.tensor(E2M1)[(codes & 7).long()]
    return torch.where(codes >= 8, -values, values)


def encode_fp4(x: Tensor, round_up: bool) -> tuple[Tensor, Tensor]:
    """Codes [n, d] and scales [n, d / 16] in e4m3."""
    groups, amax, bad = groups_of(x, 16)
    wanted = (amax / 6).clamp(2.0**-9, 448)
    if round_up:
        scales = torch.arange(0x7F, dtype=torch.uint8).view(E4M3)
        scales = scales[torch.searchsorted(scales.double(), wanted)]
    else:
        scales = to_e4m3(wanted)
    scales = of_bytes(torch.where(bad, 0x7F, as_bytes(scales)), E4M3)
    divided = only_signs(groups, bad) / torch.where(bad, 1, scales.double())[..., None]
    return to_e2m1(divided, bad[..., None]).flatten(-2), scales


def decode_fp4(codes: Tensor, scales: Tensor) -> Tensor:
    return unpack_nibbles(codes) * scales.float().repeat_interleave(16, 1)


def plain_fp4() -> tuple[Callable, Callable]:
    def encode(x: Tensor) -> Parts:
        codes, scales = encode_fp4(x, round_up=False)
        return Parts(pack_nibbles(codes), as_bytes(scales), as_bytes(x[:, :0]))

    def decode(parts: Parts) -> Tensor:
        return decode_fp4(parts.data, of_bytes(parts.scales, E4M3)).bfloat16()

    return encode, decode


def main_fp4() -> tuple[Callable, Callable]:
    columns, padding = 448, 4

    def encode(x: Tensor) -> Parts:
        codes, scales = encode_fp4(x, round_up=False)
        packed = pack_nibbles(codes)
        rope = decode_fp4(packed, scales)[:, columns:].bfloat16()
        kept = as_bytes(scales)[:, : columns // 16]
        return Parts(packed[:, : columns // 2], torch.nn.functional.pad(kept, (0, padding)), as_bytes(rope))

    def decode(parts: Parts) -> Tensor:
        values = decode_fp4(parts.data, of_bytes(parts.scales[:, : columns // 16], E4M3))
        return torch.cat([values.bfloat16(), of_bytes(parts.rope, torch.bfloat16)], 1)

    return encode, decode


def nvfp4() -> tuple[Callable, Callable]:
    columns = 512
    group = torch.arange(32)
    place = 8 * (group & 3) + (group >> 2)  # of each group's scale in the tail

    def encode(x: Tensor) -> Parts:
        codes, scales = encode_fp4(x[:, :columns], round_up=True)
        tail = torch.empty_like(as_bytes(scales))
        tail[:, place] = as_bytes(scales)
        return Parts(pack_nibbles(codes), tail, as_bytes(to_e4m3(x[:, columns:].double())))

    def decode(parts: Parts) -> Tensor:
        values = decode_fp4(parts.data, of_bytes(parts.scales[:, place], E4M3))
        return torch.cat([values, of_bytes(parts.rope, E4M3).float()], 1).bfloat16()

    return encode, decode


# ---- the table ----------------------------------------------------------------------------------------

RECORDS: dict[str, Record] = {
    "v32_fp8": Record(
        576,
        (("data", "scales", "rope"),),
        {"data": 512, "scales": 16, "rope": 128},
        *fp8_with_float_scales(512, 128, True),
    ),
    "v32_nope_fp8": Record(
        512, (("data", "scales"),), {"data": 512, "scales": 16}, *fp8_with_float_scales(512, 128, False)
    ),
    "v4_fp8": Record(
        512,
        (("data", "rope"), ("scales",)),
        {"data": 448, "rope": 128, "scales": 8},
        *fp8_with_exponents(448, 64, 1, True),
    ),
    "v41_fp8": Record(
        512, (("data",), ("scales",)), {"data": 512, "scales": 16}, *fp8_with_exponents(512, 32, 0, False)
    ),
    "v41_fp4": Record(512, (("data",), ("scales",)), {"data": 256, "scales": 32}, *plain_fp4()),
    "v41_fp8_row": Record(
        512, (("data", "scales"),), {"data": 512, "scales": 16}, *fp8_with_exponents(512, 32, 0, False)
    ),
    "v41_fp4_row": Record(512, (("data", "scales"),), {"data": 256, "scales": 32}, *plain_fp4()),
    "v41_main_fp4": Record(
        512, (("data",), ("scales",), ("rope",)), {"data": 224, "scales": 32, "rope": 128}, *main_fp4()
    ),
    "v32_nvfp4": Record(
        576, (("data", "rope", "scales"),), {"data": 256, "rope": 64, "scales": 32}, *nvfp4()
    ),
}
BF16 = "bf16"
# Records that a width does not tell from others.
NAMED = ("v32_nope_fp8", "v41_fp8_row", "v41_fp4_row")
NAMES = (*RECORDS, BF16)
MAIN_NAMES = tuple(name for name in NAMES if not (name.startswith("v41_") and "fp4" in name))
# Which extra cache goes with which main cache.
PAIRS = (
    *((name, name) for name in MAIN_NAMES),
    ("v41_fp8", "v41_fp4"),
    ("v41_fp8_row", "v41_fp4_row"),
    ("v4_fp8", "v41_main_fp4"),
)


def record_of(cache: Tensor, d: int) -> str:
    """The record that a cache's width tells."""
    if cache.dtype == torch.bfloat16:
        return BF16
    (found,) = (
        name
        for name, record in RECORDS.items()
        if name not in NAMED and (record.bytes, record.d) == (cache.shape[-1], d)
    )
    return found


def encode(x: Tensor, record: str, page: int) -> Tensor:
    """[pages, page * bytes] uint8, or [pages, page * d] bfloat16; zero rows fill the last page up."""
    x = torch.nn.functional.pad(x, (0, 0, 0, -len(x) % page))
    if record == BF16:
        return x.reshape(-1, page * x.shape[1])
    kind = RECORDS[record]
    parts = kind.encode(x)
    planes = [torch.cat([getattr(parts, piece) for piece in plane], 1) for plane in kind.planes]
    return torch.cat([plane.reshape(-1, page * plane.shape[1]) for plane in planes], 1)


def page_rows(pages: Tensor) -> Tensor:
    """The contents of pages [num_blocks, page, 1, bytes] as [num_blocks, page * bytes]."""
    num_blocks, page, _, width = pages.shape
    flat = pages.as_strided((num_blocks, page * width), (pages.stride(0), 1))
    return flat if pages.dtype == torch.bfloat16 else flat.view(torch.uint8)


def decode(pages: Tensor, record: str) -> Tensor:
    """[num_blocks * page, d] bfloat16 of pages [num_blocks, page, 1, bytes]."""
    num_blocks, page, _, width = pages.shape
    rows = page_rows(pages)
    if record == BF16:
        return rows.reshape(num_blocks * page, width)
    kind = RECORDS[record]
    pieces = {name: rows.new_empty((num_blocks * page, 0)) for name in Parts._fields}
    begin = 0
    for plane in kind.planes:
        bytes_of_plane = sum(kind.widths[piece] for piece in plane)
        tokens = rows[:, begin : begin + page * bytes_of_plane].reshape(num_blocks * page, bytes_of_plane)
        begin += page * bytes_of_plane
        at = 0
        for piece in plane:
            pieces[piece] = tokens[:, at : at + kind.widths[piece]]
            at += kind.widths[piece]
    return kind.decode(Parts(**pieces))
