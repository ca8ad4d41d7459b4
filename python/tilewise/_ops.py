"""Loads the operators into torch and tells torch.compile and torch.export the shapes of what they return.

``torch.ops.tilewise.*`` is there after the import. ``torch.ops._flashmla_C.*`` and
``torch.ops._flashmla_extension_C.*`` are registered when somebody first asks for one of them, unless another
library has brought them by then: both may be imported, in any order.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

_HEAD_SIZE = 512  # of V, and of everything in the fused operators
_LIBRARY_NAME = "libtilewise_torch.so"


def _library_path() -> Path:
    """The library beside this file; TILEWISE_TORCH_LIBRARY names another one, such as a build folder's."""
    return Path(os.environ.get("TILEWISE_TORCH_LIBRARY") or Path(__file__).with_name(_LIBRARY_NAME))


def _load() -> ctypes.CDLL:
    path = _library_path()
    if not path.is_file():
        raise ImportError(f"tilewise: the operators' library must be {path}, got no such file")
    torch.ops.load_library(str(path))
    library = ctypes.CDLL(str(path))
    library.tilewise_torch_version.restype = ctypes.c_char_p
    library.tilewise_torch_register_flashmla.argtypes = [ctypes.c_char_p]
    library.tilewise_torch_record_name.restype = ctypes.c_char_p
    library.tilewise_torch_record_dim.argtypes = [ctypes.c_char_p]
    library.tilewise_torch_record_dim.restype = ctypes.c_int64
    library.tilewise_torch_record_bytes.argtypes = [ctypes.c_char_p, ctypes.c_int64]
    library.tilewise_torch_record_bytes.restype = ctypes.c_int64
    return library


_library = _load()

VERSION: str = _library.tilewise_torch_version().decode()


def record_names() -> tuple[str, ...]:
    """The names of all cache records, in the order of their ids."""
    names = []
    while name := _library.tilewise_torch_record_name(len(names)):
        names.append(name.decode())
    return tuple(names)


def record_dim(record: str) -> int:
    """The head size that a record holds, in elements; 0 for "bf16", which holds two, and unknown names."""
    return _library.tilewise_torch_record_dim(record.encode())


def record_bytes(record: str, d: int) -> int:
    """Bytes of one token of head size `d` in a record; 0 where the record does not hold that head size."""
    return _library.tilewise_torch_record_bytes(record.encode(), d)


def operator_names() -> list[str]:
    """The names of all operators in torch.ops.tilewise."""
    prefix = "tilewise::"
    names = torch._C._dispatch_get_all_op_names()
    return sorted({n.removeprefix(prefix).partition(".")[0] for n in names if n.startswith(prefix)})


# ---- outputs ------------------------------------------------------------------------------------------
#
# One function for each functional operator, with the arguments that its outputs depend on and whatever else
# comes. The outputs look as those that the library allocates. Nothing is judged here, so every call gets an
# answer: what is wrong with it, the operator itself says.


class Look(NamedTuple):
    """Type, shape and strides of an output; row-major without strides.

    One that the call does not ask for has no element; the overload `out` then wants it left out.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    asked_for: bool = True

    def new(self, like: torch.Tensor) -> torch.Tensor:
        """An output on the device of `like`, with any contents."""
        if self.strides is None:
            return like.new_empty(self.shape, dtype=self.dtype)
        return like.new_empty_strided(self.shape, self.strides, dtype=self.dtype)


def _sizes(tensor: torch.Tensor, n: int) -> tuple[int, ...]:
    """The first n sizes; 0 for those that are not there."""
    return (*tensor.shape[:n], *[0] * (n - tensor.dim()))


def _f32(*shape: int) -> Look:
    return Look(torch.float32, shape)


def _f32_where(asked_for: bool, *shape: int) -> Look:
    return _f32(*shape) if asked_for else Look(torch.float32, (0,), asked_for=False)


def _channels_of_group(h_q: int, n_groups: int) -> int:
    return h_q // n_groups * _HEAD_SIZE if n_groups > 0 else 0


def _out_fp8(s_q: int, h_q: int, n_groups: int) -> Look:
    shape = (s_q, max(n_groups, 0), _channels_of_group(h_q, n_groups))
    return Look(torch.float8_e4m3fn, shape)


def _out_sf(s_q: int, h_q: int, n_groups: int) -> Look:
    columns = _channels_of_group(h_q, n_groups) // 128
    column_stride = (s_q + 3) // 4 * 4
    strides = (1, columns * column_stride, column_stride)
    return Look(torch.int32, (s_q, max(n_groups, 0), columns), strides)


def _column_major(scales: torch.Tensor) -> Look:
    rows, columns = _sizes(scales, 2)
    return Look(torch.int32, (rows, columns), (1, (rows + 3) // 4 * 4))


def _dense_decode(q, k_cache, block_table, cache_seqlens, softmax_scale, d_v=_HEAD_SIZE, *_, **__):
    b, s_q, h_q = _sizes(q, 3)
    dtype = torch.float16 if q.dtype == torch.float16 else torch.bfloat16
    return Look(dtype, (b, s_q, h_q, min(max(d_v, 0), _HEAD_SIZE))), _f32(b, h_q, s_q)


def _sparse_decode(q, *_, **__):
    b, s_q, h_q = _sizes(q, 3)
    return Look(torch.bfloat16, (b, s_q, h_q, _HEAD_SIZE)), _f32(b, h_q, s_q)


# As src/ops/decode_plan.h has it; `tiles` of 16 rows.
def _plan(tiles: int) -> tuple[Look, ...]:
    return (Look(torch.int32, (4 * (tiles + 1024 + 1 + 1024),)),)


def _dense_decode_plan(q, k_cache, *_, **__):
    b, s_q, h_q = _sizes(q, 3)
    h_kv = _sizes(k_cache, 3)[2]
    return _plan(b * h_kv * ((s_q * (h_q // max(h_kv, 1)) + 15) // 16))


def _sparse_decode_plan(q, *_, **__):
    b, s_q, h_q = _sizes(q, 3)
    return _plan(b * s_q * ((h_q + 15) // 16))


def _sparse_prefill_fwd(
    q,
    kv,
    indices,
    softmax_scale,
    d_v=_HEAD_SIZE,
    topk_length=None,
    attn_sink=None,
    sink_bias=None,
    indexer_topk=0,
):
    s_q, h_q = _sizes(q, 2)
    out = Look(torch.bfloat16, (s_q, h_q, min(max(d_v, 0), _HEAD_SIZE)))
    return out, _f32(s_q, h_q), _f32(s_q, h_q), _f32_where(indexer_topk != 0, s_q, h_q)


def _matrix(q: torch.Tensor, *shape: int) -> Look:
    """In q's type, or in any where that is wrong."""
    return Look(torch.float16 if q.dtype == torch.float16 else torch.bfloat16, shape)


def _d_sink(q: torch.Tensor, sink_bias: torch.Tensor | None) -> Look:
    if sink_bias is None:
        return _f32_where(False)
    narrow = sink_bias.dtype in (torch.bfloat16, torch.float16)
    return Look(sink_bias.dtype if narrow else torch.float32, _sizes(q, 2)[1:])


def _varlen_fwd(q, k, v, *_, **__):
    s_q, h_q = _sizes(q, 2)
    return _matrix(q, s_q, h_q, _sizes(v, 3)[2]), _f32(s_q, h_q)


def _varlen_gradients(q, k, v, sink_bias):
    return *(_matrix(q, *_sizes(x, 3)) for x in (q, k, v)), _d_sink(q, sink_bias)


def _dense_prefill_bwd(
    d_out,
    q,
    k,
    v,
    out,
    lse,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    softmax_scale,
    causal=False,
    window=(-1, -1),
    sink_bias=None,
    deterministic=True,
):
    return _varlen_gradients(q, k, v, sink_bias)


def _block_sparse_prefill_bwd(
    d_out,
    q,
    k,
    v,
    out,
    lse,
    q2k,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    softmax_scale,
    q_block=128,
    kv_block=128,
    causal=True,
    window=(-1, -1),
    sink_bias=None,
    deterministic=True,
):
    return _varlen_gradients(q, k, v, sink_bias)


def _sparse_prefill_bwd(
    d_out,
    q,
    kv,
    out,
    lse,
    indices,
    softmax_scale,
    d_v=_HEAD_SIZE,
    topk_length=None,
    sink_bias=None,
    kl_target=False,
    deterministic=True,
):
    dq, dkv = (Look(torch.bfloat16, _sizes(x, 3)) for x in (q, kv))
    return dq, dkv, _d_sink(q, sink_bias), _f32_where(kl_target, _sizes(q, 1)[0], _sizes(indices, 3)[2])


def _expand_block_selection(q2k, factor):
    *heads, rows, width = _sizes(q2k, 3 if q2k.dim() == 3 else 2)
    return (Look(torch.int32, (*heads, rows * max(factor, 0), width)),)


def _invert_block_selection(q2k, num_kv_blocks):
    """As the overload takes them: the functional form's q_blocks is shorter, by what the values tell."""
    heads = q2k.shape[:1] if q2k.dim() == 3 else ()
    return Look(torch.int32, (*heads, max(num_kv_blocks, -1) + 1)), Look(torch.int32, (q2k.numel(),))


def _fused(q, keys, indices, token_positions, cos_sin_cache, softmax_scale, n_groups, *_, **__):
    s_q, h_q = _sizes(q, 2)
    return _out_fp8(s_q, h_q, n_groups), _out_sf(s_q, h_q, n_groups), _f32(s_q, h_q)


def _fused_prefill(q, *args, **kwargs):
    return *_fused(q, *args, **kwargs), _f32(*_sizes(q, 2))


_PLACE_OF_NUM_SPLITS = 15


def _fused_decode_partials(q, *args, num_splits=1, **_):
    if len(args) >= _PLACE_OF_NUM_SPLITS:
        num_splits = args[_PLACE_OF_NUM_SPLITS - 1]
    n, (s_q, h_q) = max(num_splits, 0), _sizes(q, 2)
    return _f32(n, s_q, h_q, _HEAD_SIZE), _f32(n, s_q, h_q)


def _combine_partials(out_partials, *_, **__):
    _n, s_q, h_q, d_v = _sizes(out_partials, 4)
    narrow = out_partials.dtype in (torch.bfloat16, torch.float16)
    dtype = out_partials.dtype if narrow else torch.float32
    return Look(dtype, (s_q, h_q, d_v)), _f32(s_q, h_q)


def _combine_partials_fused(out_partials, lse_partials, attn_sink=None, base2=False, n_groups=1):
    _n, s_q, h_q = _sizes(out_partials, 3)
    return _out_fp8(s_q, h_q, n_groups), _out_sf(s_q, h_q, n_groups), _f32(s_q, h_q)


def _quantize_kv(x, record, page):
    n, d = _sizes(x, 2)
    page = max(page, 1)
    plain = record == "bf16"
    width = d if plain else record_bytes(record, record_dim(record))
    unit = 8 if plain else 16  # elements in 16 bytes, where blocks begin
    strides = ((page * width + unit - 1) // unit * unit, width, width, 1)
    dtype = torch.bfloat16 if plain else torch.uint8
    return (Look(dtype, ((n + page - 1) // page, page, 1, width), strides),)


def _dequantize_kv(pages, record):
    num_blocks, page, _one, width = _sizes(pages, 4)
    d = width if record == "bf16" else record_dim(record)
    return (Look(torch.bfloat16, (num_blocks * page, d)),)


def _permute_q_b_proj(weight, scales, *_, **__):
    return Look(torch.float8_e4m3fn, _sizes(weight, 2)), _column_major(scales)


def _permute_wv_proj(weight, scales, *_, **__):
    return Look(torch.float8_e4m3fn, _sizes(weight, 3)), Look(torch.int32, _sizes(scales, 3))


OUTPUTS: dict[str, Callable[..., tuple[Look, ...]]] = {
    "dense_decode": _dense_decode,
    "sparse_decode": _sparse_decode,
    "dense_decode_plan": _dense_decode_plan,
    "sparse_decode_plan": _sparse_decode_plan,
    "sparse_prefill_fwd": _sparse_prefill_fwd,
    "sparse_prefill_bwd": _sparse_prefill_bwd,
    "dense_prefill_fwd": _varlen_fwd,
    "dense_prefill_bwd": _dense_prefill_bwd,
    "block_sparse_prefill_fwd": _varlen_fwd,
    "block_sparse_prefill_bwd": _block_sparse_prefill_bwd,
    "expand_block_selection": _expand_block_selection,
    "invert_block_selection": _invert_block_selection,
    "fused_prefill": _fused_prefill,
    "fused_decode": _fused,
    "fused_decode_partials": _fused_decode_partials,
    "combine_partials": _combine_partials,
    "combine_partials_fused": _combine_partials_fused,
    "quantize_kv": _quantize_kv,
    "dequantize_kv": _dequantize_kv,
    "permute_q_b_proj": _permute_q_b_proj,
    "permute_wv_proj": _permute_wv_proj,
}


def _fake(outputs: Callable[..., tuple[Look, ...]], count: int | None = None) -> Callable[..., object]:
    """The functional operator without its work; only its first `count` outputs."""

    def fake(like, *args, **kwargs):
        made = tuple(look.new(like) for look in outputs(like, *args, **kwargs)[:count])
        return made if len(made) > 1 else made[0]

    return fake


def _nothing(*_, **__):
    return None


def _fake_invert_block_selection(q2k, num_kv_blocks):
    row_ptr, _ = _invert_block_selection(q2k, num_kv_blocks)
    n = torch.library.get_ctx().new_dynamic_size()
    return row_ptr.new(q2k), q2k.new_empty((n,), dtype=torch.int32)


_FAKES = {name: _fake(outputs) for name, outputs in OUTPUTS.items()}
_FAKES["invert_block_selection"] = _fake_invert_block_selection

for _name, _function in _FAKES.items():
    torch.library.register_fake(f"tilewise::{_name}", _function)
    torch.library.register_fake(f"tilewise::{_name}.out", _nothing)
for _name in ("sparse_prefill_fwd", "dense_prefill_fwd", "block_sparse_prefill_fwd"):
    _returns = getattr(torch.ops.tilewise, f"{_name}_no_grad").default._schema.returns
    torch.library.register_fake(f"tilewise::{_name}_no_grad", _fake(OUTPUTS[_name], len(_returns)))
torch.library.register_fake("tilewise::append_kv", _nothing)
torch.library.register_fake("tilewise::noop", _nothing)


# ---- FlashMLA's operators -----------------------------------------------------------------------------


def _flashmla_sparse_decode(
    q,
    kv,
    indices,
    topk_length,
    attn_sink,
    tile_scheduler_metadata,
    num_splits,
    extra_kv,
    extra_indices,
    extra_topk_length,
    d_v,
    sm_scale,
    out_=None,
):
    out, lse = _sparse_decode(q)
    return out.new(q) if out_ is None else out_, lse.new(q), tile_scheduler_metadata, num_splits


def _flashmla_dense_decode(
    q,
    kcache,
    head_size_v,
    seqlens_k,
    block_table,
    softmax_scale,
    is_causal,
    tile_scheduler_metadata,
    num_splits,
    out_=None,
):
    out, lse = _dense_decode(q, kcache, block_table, seqlens_k, softmax_scale, head_size_v)
    return out.new(q) if out_ is None else out_, lse.new(q), tile_scheduler_metadata, num_splits


def _flashmla_sparse_prefill(q, kv, indices, sm_scale, d_v, attn_sink, topk_length, out_=None):
    out, max_logits, lse, _ = _sparse_prefill_fwd(q, kv, indices, sm_scale, d_v)
    return [out.new(q) if out_ is None else out_, max_logits.new(q), lse.new(q)]


def _flashmla_fused_outputs(q, n_wv_group, out_fp8, out_sf) -> list[torch.Tensor]:
    s_q, h_q = _sizes(q, 2)
    return [
        _out_fp8(s_q, h_q, n_wv_group).new(q) if out_fp8 is None else out_fp8,
        _out_sf(s_q, h_q, n_wv_group).new(q) if out_sf is None else out_sf,
        _f32(s_q, h_q).new(q),
    ]


def _flashmla_fused_fwd(
    q,
    kv,
    indices,
    sm_scale,
    d_v,
    attn_sink,
    topk_length,
    enable_q_norm,
    rms_norm_eps,
    token_positions,
    is_rope_neox_style,
    rope_dim,
    cos_sin_cache,
    n_wv_group,
    num_per_channels,
    use_tma_aligned_col_major_sf,
    round_sf,
    use_packed_ue8m0,
    out_fp8=None,
    out_sf=None,
):
    outputs = _flashmla_fused_outputs(q, n_wv_group, out_fp8, out_sf)
    return [*outputs, _f32(*_sizes(q, 2)).new(q)]


def _flashmla_fused_decode(
    q,
    kv,
    indices,
    sm_scale,
    d_v,
    attn_sink,
    topk_length,
    extra_kv,
    extra_indices,
    extra_topk_length,
    enable_q_norm,
    rms_norm_eps,
    token_positions,
    is_rope_neox_style,
    rope_dim,
    cos_sin_cache,
    n_wv_group,
    num_per_channels,
    use_tma_aligned_col_major_sf,
    round_sf,
    use_packed_ue8m0,
    out_fp8=None,
    out_sf=None,
    mega_num_splits=1,
    mega_o_accum=None,
    mega_lse_accum=None,
):
    return _flashmla_fused_outputs(q, n_wv_group, out_fp8, out_sf)


def _flashmla_permute_q_b_proj(q_b_proj, scale_factors, h_q, d_q):
    return list(_fake(_permute_q_b_proj)(q_b_proj, scale_factors))


def _flashmla_permute_wv_proj(wv_proj, scale_factors, wv_group_size, d_o):
    return list(_fake(_permute_wv_proj)(wv_proj, scale_factors))


def _flashmla_dense_fp8(q, k_cache, head_dim_v, cache_seqlens, block_table, softmax_scale, *_, **__):
    looks = _dense_decode(q, k_cache, block_table, cache_seqlens, softmax_scale, head_dim_v)
    return [look.new(q) for look in looks]


def _flashmla_dense_fp8_metadata(seqlens_k, num_heads_per_head_k, num_heads_k):
    metadata = seqlens_k.new_empty((1, 8), dtype=torch.int32)
    return [metadata, seqlens_k.new_empty((seqlens_k.shape[0] + 1,), dtype=torch.int32)]


_FLASHMLA_SHAPES: dict[str, dict[str, Callable[..., object]]] = {
    "_flashmla_C": {
        "sparse_decode_fwd": _flashmla_sparse_decode,
        "dense_decode_fwd": _flashmla_dense_decode,
        "sparse_prefill_fwd": _flashmla_sparse_prefill,
        "dense_prefill_fwd": _nothing,
        "dense_prefill_bwd": _nothing,
        "fused_norm_rope_attn_rope_cast_fwd": _flashmla_fused_fwd,
        "fused_norm_rope_attn_rope_cast_decode": _flashmla_fused_decode,
        "permute_q_b_proj": _flashmla_permute_q_b_proj,
        "permute_wv_proj": _flashmla_permute_wv_proj,
    },
    "_flashmla_extension_C": {
        "fwd_kvcache_mla_fp8": _flashmla_dense_fp8,
        "get_mla_decoding_metadata_dense_fp8": _flashmla_dense_fp8_metadata,
    },
}

_flashmla_lock = threading.RLock()
_flashmla_done: set[str] = set()


def register_flashmla(namespace: str) -> None:
    """Registers FlashMLA's operators of a namespace, unless somebody has. Does nothing when repeated."""
    with _flashmla_lock:
        if namespace in _flashmla_done:
            return
        _flashmla_done.add(namespace)
        if any(name.startswith(f"{namespace}::") for name in torch._C._dispatch_get_all_op_names()):
            return
        if _library.tilewise_torch_register_flashmla(namespace.encode()) != 0:
            raise RuntimeError(f"tilewise: torch refused the operators of {namespace}")
        for name, function in _FLASHMLA_SHAPES[namespace].items():
            torch.library.register_fake(f"{namespace}::{name}", function)


class _FlashMlaNamespace(torch._ops._OpNamespace):
    """torch.ops.<namespace>, filled when an operator is first asked for."""

    def __getattr__(self, name: str) -> object:
        # torch.library looks a name up before it defines it: that is somebody else bringing the operators.
        caller = sys._getframe(1).f_globals.get("__name__")
        if not name.startswith("_") and caller != "torch.library":
            register_flashmla(self.name)
        return super().__getattr__(name)


for _namespace in _FLASHMLA_SHAPES:
    setattr(torch.ops, _namespace, _FlashMlaNamespace(_namespace))
