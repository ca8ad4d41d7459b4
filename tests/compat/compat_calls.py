"""Small calls of every function of `flash_mla`, as keyword arguments, and the native calls they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flash_mla
import tilewise
import torch
from flash_mla import fused_norm_rope_attn_rope_cast as fused
from ops_calls import GROUPS, HEADS, MAX_POS, TOPK, bf16, fp8, fp32, i32, indices, pages

Kwargs = dict[str, Any]
SCALE = 0.05


def meta() -> flash_mla.FlashMLASchedMeta:
    return flash_mla.get_mla_metadata()[0]


def dense(**changes: Any) -> Kwargs:
    return {
        "q": bf16(2, 3, HEADS, 576),
        "k_cache": bf16(3, 4, 1, 576, seed=2),
        "block_table": i32(2, 0, 1, 1).view(2, 2),
        "cache_seqlens": i32(7, 5),
        "head_dim_v": 512,
        "tile_scheduler_metadata": meta(),
        **changes,
    }


def sparse(**changes: Any) -> Kwargs:
    return {
        "q": bf16(2, 1, HEADS, 512),
        "k_cache": pages("v4_fp8"),
        "block_table": None,
        "cache_seqlens": None,
        "head_dim_v": 512,
        "tile_scheduler_metadata": meta(),
        "is_fp8_kvcache": True,
        "indices": indices(2, 1, TOPK, below=12),
        **changes,
    }


def extra(record: str = "v4_fp8") -> Kwargs:
    """A second cache, with pages of another size."""
    return {
        "extra_k_cache": pages(record, n=9, page=2, seed=3),
        "extra_indices_in_kvcache": indices(2, 1, 3, below=9, seed=4),
        "extra_topk_length": i32(3, 2),
    }


def sparse_fwd(**changes: Any) -> Kwargs:
    return {
        "q": bf16(5, HEADS, 576),
        "kv": bf16(9, 1, 576, seed=2),
        "indices": indices(5, 1, TOPK, below=9),
        "sm_scale": SCALE,
        **changes,
    }


def dense_fp8(**changes: Any) -> Kwargs:
    lengths = i32(7, 5)
    rows, splits = flash_mla.get_mla_metadata_dense_fp8(lengths, 3 * HEADS, 1)
    return {
        "q": fp8(2, 3, HEADS, 576),
        "k_cache": fp8(3, 4, 1, 576, seed=2),
        "block_table": i32(2, 0, 1, 1).view(2, 2),
        "cache_seqlens": lengths,
        "head_dim_v": 512,
        "tile_scheduler_metadata": rows,
        "num_splits": splits,
        "descale_q": torch.tensor([0.5]),
        "descale_k": torch.tensor([2.0]),
        **changes,
    }


def settings(s_q: int) -> Kwargs:
    """The eleven leading arguments of the fused functions."""
    return {
        "enable_q_norm": False,
        "rms_norm_eps": 0.0,
        "token_positions": torch.arange(s_q, dtype=torch.int32) * 3,
        "is_rope_neox_style": False,
        "rope_dim": 64,
        "cos_sin_cache": fp32(MAX_POS, 64, seed=5),
        "n_wv_group": GROUPS,
        "num_per_channels": 32,
        "use_tma_aligned_col_major_sf": True,
        "round_sf": True,
        "use_packed_ue8m0": True,
    }


def prefill(s_q: int = 5, **changes: Any) -> Kwargs:
    return {
        **settings(s_q),
        "q": bf16(s_q, HEADS, 512),
        "kv": bf16(9, 1, 512, seed=2),
        "indices": indices(s_q, 1, TOPK, below=9),
        "sm_scale": SCALE,
        **changes,
    }


def decode(s_q: int = 3, **changes: Any) -> Kwargs:
    return {
        **settings(s_q),
        "q": bf16(s_q, HEADS, 512),
        "k_cache": pages("v4_fp8"),
        "indices_in_kvcache": indices(s_q, TOPK, below=12),
        "sm_scale": SCALE,
        **changes,
    }


def decode_extra(record: str = "v4_fp8") -> Kwargs:
    return {
        "extra_k_cache": pages(record, n=9, page=2, seed=3),
        "extra_indices_in_kvcache": indices(3, 4, below=9, seed=4),
        "extra_topk_length": i32(4, 0, 2),
    }


def q_b_proj(**changes: Any) -> Kwargs:
    rows = HEADS * 32
    scales = torch.arange(rows * 2, dtype=torch.int32).view(2, rows).t()
    return {"weight_and_sf": (fp8(rows, 256), scales), "h_q": HEADS, "d_q": 32, **changes}


def wv_proj(**changes: Any) -> Kwargs:
    scales = torch.arange(2 * 3 * 8, dtype=torch.int32).view(2, 3, 8)
    return {"weight_and_sf": (fp8(2, 3, 1024), scales), "wv_group_size": 2, "d_o": 512, **changes}


# ---- the native calls -----------------------------------------------------------------------------------

# What the native operators call the arguments; those that are not here have the same name or no counterpart.
NATIVE_NAMES = {
    "head_dim_v": "d_v",
    "window_size": "window",
    "enable_batch_invariant": "batch_invariant",
    "extra_k_cache": "extra_cache",
    "extra_indices_in_kvcache": "extra_indices",
    "indices_in_kvcache": "indices",
    "sm_scale": "softmax_scale",
    "n_wv_group": "n_groups",
    "wv_group_size": "group_size",
}
WITHOUT_COUNTERPART = {
    "tile_scheduler_metadata",
    "num_splits",
    "is_fp8_kvcache",
    "enable_q_norm",
    "is_rope_neox_style",
    "rope_dim",
    "num_per_channels",
    "use_tma_aligned_col_major_sf",
    "round_sf",
    "use_packed_ue8m0",
}


def native_arguments(kwargs: Kwargs) -> Kwargs:
    """A call's arguments as the native operator, and the oracle, take them; without outputs."""
    native = {
        NATIVE_NAMES.get(name, name): value
        for name, value in kwargs.items()
        if name not in WITHOUT_COUNTERPART and name != "out"
    }
    if "enable_q_norm" in kwargs:
        eps = native.pop("rms_norm_eps")
        native["q_norm_eps"] = eps if kwargs["enable_q_norm"] else None
        native.pop("d_v", None)
    if kwargs.get("indices") is not None and "head_dim_v" in kwargs:
        for name in ("block_table", "cache_seqlens", "d_v"):
            native.pop(name, None)
    if "k_cache" in native and native.get("indices") is not None:
        native["kv_cache"] = native.pop("k_cache")
    if native.get("softmax_scale") is None and "q" in native:
        native["softmax_scale"] = native["q"].shape[-1] ** -0.5
    if "kv_format" in native:
        names = native.pop("kv_format")
        native["record"], native["extra_record"] = (names, None) if isinstance(names, str) else names
    if "weight_and_sf" in native:
        native["weight"], native["scales"] = native.pop("weight_and_sf")
    return native


class Function(NamedTuple):
    """A function of the package, its native operator, and calls of it with different options."""

    function: Callable[..., Any]
    native: str
    calls: dict[str, Kwargs]

    def run(self, name: str) -> tuple[torch.Tensor, ...]:
        return self.function(**self.calls[name])

    def run_native(self, name: str) -> tuple[torch.Tensor, ...]:
        return getattr(tilewise, self.native)(**native_arguments(self.calls[name]))


SINK = fp32(HEADS, seed=6)
FUNCTIONS = {
    "dense": Function(
        flash_mla.flash_mla_with_kvcache,
        "dense_decode",
        {
            "plain": dense(),
            "causal": dense(causal=True, softmax_scale=SCALE),
            "causal, window": dense(causal=True, window_size=(2, 0)),
            "window, sink": dense(window_size=[1, 1], attn_sink=SINK),
            "batch invariant": dense(enable_batch_invariant=True),
            "groups, float16": dense(
                q=bf16(2, 3, HEADS, 512).half(), k_cache=bf16(3, 4, 2, 512, seed=2).half(), causal=True
            ),
            "lonely": dense(cache_seqlens=i32(0, 2), causal=True),
        },
    ),
    "sparse": Function(
        flash_mla.flash_mla_with_kvcache,
        "sparse_decode",
        {
            "plain": sparse(),
            "lengths, sink": sparse(topk_length=i32(4, 9), attn_sink=SINK, softmax_scale=SCALE),
            "extra": sparse(**extra(), topk_length=i32(4, 0)),
            "extra fp4": sparse(k_cache=pages("v41_fp8"), **extra("v41_fp4")),
            "named": sparse(k_cache=pages("v32_nope_fp8"), kv_format="v32_nope_fp8"),
            "named pair": sparse(
                k_cache=pages("v41_fp8_row"),
                kv_format=("v41_fp8_row", "v41_fp4_row"),
                **extra("v41_fp4_row"),
            ),
            "bf16": sparse(
                q=bf16(2, 1, HEADS, 576), k_cache=bf16(3, 4, 1, 576, seed=2), is_fp8_kvcache=False
            ),
            "batch invariant": sparse(enable_batch_invariant=True),
        },
    ),
    "sparse prefill": Function(
        flash_mla.flash_mla_sparse_fwd,
        "sparse_prefill_fwd",
        {
            "plain": sparse_fwd(),
            "sink, lengths": sparse_fwd(attn_sink=SINK, topk_length=i32(0, 1, 3, 9, -1)),
            "indexer": sparse_fwd(indexer_topk=3),
        },
    ),
    "dense fp8": Function(
        flash_mla.flash_mla_with_kvcache_fp8,
        "dense_decode",
        {"plain": dense_fp8(), "causal": dense_fp8(causal=True, softmax_scale=SCALE)},
    ),
    "fused prefill": Function(
        fused.prefill,
        "fused_prefill",
        {
            "plain": prefill(),
            "norm, sink": prefill(
                enable_q_norm=True, rms_norm_eps=1e-6, attn_sink=SINK, topk_length=i32(0, 1, 3, 9, -1)
            ),
            "no norm, its eps unused": prefill(rms_norm_eps=float("nan")),
        },
    ),
    "fused decode": Function(
        fused.decode,
        "fused_decode",
        {
            "plain": decode(),
            "norm, sink": decode(enable_q_norm=True, rms_norm_eps=1e-6, attn_sink=SINK),
            "extra": decode(**decode_extra(), topk_length=i32(6, 2, 0)),
            "extra fp4": decode(k_cache=pages("v41_fp8"), **decode_extra("v41_fp4")),
            "named": decode(k_cache=pages("v32_nope_fp8"), kv_format="v32_nope_fp8"),
            "named pair": decode(
                k_cache=pages("v41_fp8_row"),
                kv_format=["v41_fp8_row", "v41_fp4_row"],
                **decode_extra("v41_fp4_row"),
            ),
        },
    ),
    "q_b": Function(fused.permute_q_b_proj, "permute_q_b_proj", {"plain": q_b_proj()}),
    "wv": Function(fused.permute_wv_proj, "permute_wv_proj", {"plain": wv_proj()}),
}
