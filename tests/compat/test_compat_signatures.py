"""Names, order, kinds and defaults of every function, and what can be imported from where."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from pathlib import Path
from typing import Any

import flash_mla
import pytest
import tilewise
from flash_mla import _training, flash_mla_interface
from flash_mla import fused_norm_rope_attn_rope_cast as fused

SETTINGS = (
    "enable_q_norm, rms_norm_eps, token_positions, is_rope_neox_style, rope_dim, cos_sin_cache, n_wv_group, "
    "num_per_channels, use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0, "
)
SIGNATURES: dict[Any, str] = {
    flash_mla.get_mla_metadata: "*args, **kw",
    flash_mla.flash_mla_with_kvcache: (
        "q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits=None, "
        "softmax_scale=None, causal=False, is_fp8_kvcache=False, indices=None, attn_sink=None, "
        "extra_k_cache=None, extra_indices_in_kvcache=None, topk_length=None, extra_topk_length=None, "
        "out=None, *, window_size=(-1, -1), kv_format=None, enable_batch_invariant=False"
    ),
    flash_mla.flash_mla_sparse_fwd: (
        "q, kv, indices, sm_scale, d_v=512, attn_sink=None, topk_length=None, out=None, *, indexer_topk=0"
    ),
    flash_mla.flash_mla_with_kvcache_fp8: (
        "q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits, "
        "softmax_scale=None, causal=False, descale_q=None, descale_k=None"
    ),
    flash_mla.get_mla_metadata_dense_fp8: "cache_seqlens, num_q_tokens_per_head_k, num_heads_k",
    flash_mla.flash_attn_varlen_func: (
        "q, k, v, cu_seqlens_qo, cu_seqlens_kv, max_seqlen_qo, max_seqlen_kv, dropout_p=0.0, "
        "softmax_scale=None, causal=False, deterministic=False, is_varlen=True, window_size=(-1, -1), "
        "sink_bias=None"
    ),
    flash_mla.flash_attn_varlen_qkvpacked_func: (
        "qkv, cu_seqlens, max_seqlen, head_dim_qk, dropout_p=0.0, softmax_scale=None, causal=False, "
        "deterministic=False, is_varlen=True, window_size=(-1, -1)"
    ),
    flash_mla.flash_attn_varlen_kvpacked_func: (
        "q, kv, cu_seqlens_qo, cu_seqlens_kv, max_seqlen_qo, max_seqlen_kv, head_dim_qk, dropout_p=0.0, "
        "softmax_scale=None, causal=False, deterministic=False, is_varlen=True, window_size=(-1, -1)"
    ),
    flash_mla.block_sparse_prefill_fwd: (
        "q, k, v, q2k_blocks, sm_scale, attn_sink=None, *, window_size=-1, kv_block_size=128, "
        "q_block_size=256"
    ),
    flash_mla.block_sparse_prefill_bwd: (
        "q, k, v, o, do_grad, lse, q2k_blocks, sm_scale, window_size=-1, kv_block_size=128, "
        "q_block_size=64, attn_sink=None, *, deterministic=True"
    ),
    flash_mla.flash_mla_sparse_bwd: (
        "q, kv, o, do_grad, indices, lse, dq_acc_workspace, dkv_acc_workspace, sm_scale, d_v=512, "
        "fuse_reducesum=True, *, topk_length=None, sink_bias=None, deterministic=True"
    ),
    flash_mla.expand_block_selection: "q2k_blocks, factor",
    fused.prefill: SETTINGS
    + "q, kv, indices, sm_scale, d_v=512, attn_sink=None, topk_length=None, out=None, *, out_fp8=None, "
    "out_sf=None",
    fused.decode: SETTINGS
    + "q, k_cache, indices_in_kvcache, sm_scale, d_v=512, attn_sink=None, topk_length=None, "
    "extra_k_cache=None, extra_indices_in_kvcache=None, extra_topk_length=None, out=None, "
    "mega_num_splits=1, mega_o_accum=None, mega_lse_accum=None, *, out_fp8=None, out_sf=None, kv_format=None",
    fused.permute_q_b_proj: "weight_and_sf, h_q, d_q",
    fused.permute_wv_proj: "weight_and_sf, wv_group_size, d_o",
}


def parameters(function: Any) -> list[tuple[Any, ...]]:
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("function", SIGNATURES, ids=lambda f: f.__name__)
def test_signature(function: Any) -> None:
    assert parameters(function) == parameters(eval(f"lambda {SIGNATURES[function]}: None"))
    hints = inspect.signature(function)
    assert all(p.annotation is not p.empty for p in hints.parameters.values())
    assert hints.return_annotation is not hints.empty
    assert function.__doc__


def test_every_function_is_in_the_table() -> None:
    functions = {
        value
        for module in (flash_mla, flash_mla_interface, _training, fused)
        for name, value in vars(module).items()
        if inspect.isfunction(value) and not name.startswith("_") and value.__module__ == module.__name__
    }
    assert functions - set(SIGNATURES) == set()
    assert {n for n in flash_mla.__all__ if inspect.isfunction(getattr(flash_mla, n))} == {
        f.__name__ for f in SIGNATURES if f.__module__ != fused.__name__
    }


def test_import_paths() -> None:
    interface = importlib.import_module("flash_mla.flash_mla_interface")
    for name in set(flash_mla.__all__) - {"__version__", "fused_norm_rope_attn_rope_cast"}:
        assert getattr(interface, name) is getattr(flash_mla, name)
    assert importlib.import_module("flash_mla.fused_norm_rope_attn_rope_cast") is fused
    assert flash_mla.fused_norm_rope_attn_rope_cast is fused
    assert flash_mla.__version__ == tilewise.__version__
    assert Path(flash_mla.__file__).with_name("py.typed").is_file()


def test_schedule_fields() -> None:
    names = [field.name for field in dataclasses.fields(flash_mla.FlashMLASchedMeta)]
    assert names == ["have_initialized", "config", "tile_scheduler_metadata", "num_splits"]
    names = [field.name for field in dataclasses.fields(flash_mla.FlashMLASchedMeta.Config)]
    assert names == [
        "b",
        "s_q",
        "h_q",
        "page_block_size",
        "h_k",
        "causal",
        "is_fp8_kvcache",
        "topk",
        "extra_page_block_size",
        "extra_topk",
    ]


def test_metadata_takes_whatever_was_taken() -> None:
    fresh = flash_mla.FlashMLASchedMeta()
    assert flash_mla.get_mla_metadata() == (fresh, None)
    assert flash_mla.get_mla_metadata(1, 2, num_heads_k=3, is_fp8_kvcache=True) == (fresh, None)
    assert flash_mla.get_mla_metadata()[0] is not flash_mla.get_mla_metadata()[0]
    assert (fresh.have_initialized, fresh.config) == (False, None)
