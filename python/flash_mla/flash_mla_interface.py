"""Attention over paged caches and over token lists, and with gradients, as FlashMLA's callers call it.

What each operator means: docs/operators.md. Everything is checked before anything is written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NoReturn

import tilewise
import torch
from tilewise._operator import refuse_grad

from flash_mla._arguments import UNBOUNDED, default_scale, first_sizes, record_pair, window_pair
from flash_mla._errors import describe, named_errors
from flash_mla._training import (  # noqa: F401 (FlashMLA has them here)
    block_sparse_prefill_bwd,
    block_sparse_prefill_fwd,
    expand_block_selection,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_mla_sparse_bwd,
)

_HEAD_DIM_V = 512
_METADATA_WORDS = 8  # int32 values in a row of FlashMLA's schedule


@dataclasses.dataclass
class FlashMLASchedMeta:
    """What a run of equally shaped `flash_mla_with_kvcache` calls shares; `get_mla_metadata` makes one.

    The first call that is accepted fills it; from then on calls with other shapes or another mode are
    refused. Lengths and lists may change from call to call, results stay right.

    Attributes:
        have_initialized: whether a call has filled it.
        config: the shapes and the mode of the calls it is for; None until then.
        tile_scheduler_metadata, num_splits: int32 [1, 8] and [b + 1], all zeros, unless the caller had put
            tensors here before the first call, which then stay. They are there for callers that copy or pass
            them on; no function here reads them.
    """

    @dataclasses.dataclass
    class Config:
        """Shapes and mode of a call: 'topk' is None for dense attention, 'extra_*' without an extra cache."""

        b: int
        s_q: int
        h_q: int
        page_block_size: int
        h_k: int
        causal: bool
        is_fp8_kvcache: bool
        topk: int | None
        extra_page_block_size: int | None
        extra_topk: int | None

    have_initialized: bool = False
    config: Config | None = None
    tile_scheduler_metadata: torch.Tensor | None = None
    num_splits: torch.Tensor | None = None

    def __post_init__(self) -> None:
        # `tilewise.dense_decode_plan` of the first dense call on a GPU; no field, as FlashMLA has none.
        self._plan: torch.Tensor | None = None


def _empty_schedule(like: torch.Tensor, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = like.new_zeros((1, _METADATA_WORDS), dtype=torch.int32)
    return rows, like.new_zeros((batch + 1,), dtype=torch.int32)


def get_mla_metadata(*args: object, **kw: object) -> tuple[FlashMLASchedMeta, None]:
    """An empty schedule for `flash_mla_with_kvcache`; one for each step, used by all of its layers.

    Takes whatever FlashMLA's releases have taken here, and needs none of it.
    """
    return FlashMLASchedMeta(), None


def _check_schedule(meta: FlashMLASchedMeta, config: FlashMLASchedMeta.Config) -> None:
    if not meta.have_initialized or meta.config == config:
        return
    for field in dataclasses.fields(config):
        made_for, came = getattr(meta.config, field.name, None), getattr(config, field.name)
        if made_for != came:
            raise ValueError(
                f"flash_mla_with_kvcache: tile_scheduler_metadata must be of the calls it was made for "
                f"({field.name} {made_for}), got {field.name} {came}"
            )


def _fill_schedule(meta: FlashMLASchedMeta, config: FlashMLASchedMeta.Config, q: torch.Tensor) -> None:
    if meta.have_initialized:
        return
    rows, splits = _empty_schedule(q, config.b)
    if meta.tile_scheduler_metadata is None:
        meta.tile_scheduler_metadata = rows
    if meta.num_splits is None:
        meta.num_splits = splits
    meta.config = config
    meta.have_initialized = True


def _dense_plan(
    meta: FlashMLASchedMeta,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    causal: bool,
    window: tuple[int, int],
) -> torch.Tensor:
    """The schedule's plan; a new one where it has none, or one for another device."""
    if meta._plan is None or meta._plan.device != q.device:
        return tilewise.dense_decode_plan(q, k_cache, block_table, cache_seqlens, causal, window)
    return meta._plan


def _refuse(name: str, expected: str, got: object) -> NoReturn:
    raise ValueError(f"flash_mla_with_kvcache: {name} must be {expected}, got {describe(got)}")


def _check_sparse(
    k_cache: torch.Tensor,
    head_dim_v: int,
    causal: bool,
    is_fp8_kvcache: bool,
    window: tuple[int, int],
) -> None:
    if head_dim_v != _HEAD_DIM_V:
        _refuse("head_dim_v", str(_HEAD_DIM_V), head_dim_v)
    if causal:
        _refuse("causal", "False with indices", causal)
    if window != UNBOUNDED:
        _refuse("window_size", "off with indices", window)
    if not is_fp8_kvcache and k_cache.dtype != torch.bfloat16:
        _refuse("is_fp8_kvcache", "True with indices where k_cache is not bfloat16", is_fp8_kvcache)


def _check_dense(
    q: torch.Tensor,
    block_table: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
    left_out: dict[str, object],
) -> None:
    if block_table is None:
        _refuse("block_table", "given without indices", block_table)
    if cache_seqlens is None:
        _refuse("cache_seqlens", "given without indices", cache_seqlens)
    for name, value in left_out.items():
        if value is not None:
            _refuse(name, "left out without indices", value)
    if q.dtype == torch.float8_e4m3fn:
        _refuse("q", "bfloat16 or float16 without indices", q)


@named_errors(
    ("dense_decode_plan", "dense_decode", "sparse_decode"),
    {
        "kv_cache": "k_cache",
        "d_v": "head_dim_v",
        "window must": "window_size must",
        "extra_cache": "extra_k_cache",
        "extra_indices": "extra_indices_in_kvcache",
        "record must": "kv_format must",
        "extra_record must": "kv_format must",
        "batch_invariant": "enable_batch_invariant",
    },
)
def flash_mla_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
    head_dim_v: int,
    tile_scheduler_metadata: FlashMLASchedMeta,
    num_splits: None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    extra_k_cache: torch.Tensor | None = None,
    extra_indices_in_kvcache: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    *,
    window_size: Sequence[int] | int | None = UNBOUNDED,
    kv_format: str | Sequence[str | None] | None = None,
    enable_batch_invariant: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode over a paged cache: the keys that `indices` lists, or without it all keys of each sequence.

    Args:
        q: [b, s_q, h_q, d_qk], d_qk 576 or 512, bfloat16; without indices float16 as well.
        k_cache: with indices [num_blocks, page, 1, bytes] of a record of docs/kv-formats.md (uint8, int8 or
            float8_e4m3fn) or bfloat16 [num_blocks, page, 1, d_qk]; without
            [num_blocks, page, h_kv, d_qk] of q's type. V is its first 512 columns.
        block_table: int32 [b, max_blocks], the blocks of each sequence; ignored with indices.
        cache_seqlens: int32 [b], keys in each sequence; ignored with indices.
        head_dim_v: 512.
        tile_scheduler_metadata: what `get_mla_metadata` returned first. On a GPU the first dense call that is
            accepted cuts the keys by its lengths, and the later ones follow: results are right with any
            lengths, but take a new one for each step, and none from a warm-up with other lengths.
        num_splits: None, which is what `get_mla_metadata` returned second.
        softmax_scale: factor of the scores; None: d_qk ** -0.5.
        causal: query i of s_q sees keys up to `cache_seqlens - s_q + i`. Not with indices.
        is_fp8_kvcache: True with indices and a cache that is not bfloat16. Changes no result.
        indices: int32 [b, s_q, topk], `block * page + offset` of each key; others than the cache's rows are
            skipped.
        attn_sink: float32 [h_q]: out is multiplied by exp(lse) / (exp(lse) + exp(sink)).
        extra_k_cache: a second cache, with a page size of its own; one softmax over both.
        extra_indices_in_kvcache: int32 [b, s_q, extra_topk] into it.
        topk_length, extra_topk_length: int32 [b]: how many entries of a list count, from its front.
        out: [b, s_q, h_q, 512], written and returned; None: a new tensor.
        window_size: without indices: (left, right), -1 unbounded: keys from `pos - left` to `pos + right`
            of the query's position, aligned at the sequence's end; or W: that many keys, the query's own the
            last, W <= 0 off; or None: off.
        kv_format: the record of k_cache, or a pair (k_cache's, extra_k_cache's), by name. What has no name is
            found by its bytes, which tells all records but `v32_nope_fp8`, `v41_fp8_row`, `v41_fp4_row`.
        enable_batch_invariant: a row's bits do not depend on the batch around it, on every device.

    Returns:
        out [b, s_q, h_q, 512] of q's type and lse [b, h_q, s_q] float32, natural logarithm. A query without
        keys: out 0, lse +inf.

    Raises:
        TypeError, ValueError: refused here. RuntimeError: refused by the operator.

    Source: docs/operators.md, sections 1 and 2.
    """
    meta = tile_scheduler_metadata
    if not isinstance(meta, FlashMLASchedMeta):
        raise TypeError(
            "flash_mla_with_kvcache: tile_scheduler_metadata must be a FlashMLASchedMeta "
            f"(get_mla_metadata()[0]), got {describe(meta)}"
        )
    if num_splits is not None:
        raise TypeError(f"flash_mla_with_kvcache: num_splits must be None, got {describe(num_splits)}")
    window = window_pair("flash_mla_with_kvcache", window_size)
    b, s_q, h_q = first_sizes(q, 3)
    _, page_block_size, h_k = first_sizes(k_cache, 3)
    config = FlashMLASchedMeta.Config(
        b=b,
        s_q=s_q,
        h_q=h_q,
        page_block_size=page_block_size,
        h_k=h_k,
        causal=causal,
        is_fp8_kvcache=is_fp8_kvcache,
        topk=first_sizes(indices, 3)[2],
        extra_page_block_size=first_sizes(extra_k_cache, 2)[1],
        extra_topk=first_sizes(extra_indices_in_kvcache, 3)[2],
    )
    _check_schedule(meta, config)
    if softmax_scale is None:
        softmax_scale = default_scale(q)

    if indices is not None:
        _check_sparse(k_cache, head_dim_v, causal, is_fp8_kvcache, window)
        record, extra_record = record_pair("flash_mla_with_kvcache", kv_format)
        result = tilewise.sparse_decode(
            q,
            k_cache,
            indices,
            softmax_scale,
            record,
            topk_length,
            extra_k_cache,
            extra_indices_in_kvcache,
            extra_topk_length,
            extra_record,
            attn_sink,
            enable_batch_invariant,
            out=out,
        )
    else:
        left_out = {
            "extra_k_cache": extra_k_cache,
            "extra_indices_in_kvcache": extra_indices_in_kvcache,
            "topk_length": topk_length,
            "extra_topk_length": extra_topk_length,
            "kv_format": kv_format,
        }
        _check_dense(q, block_table, cache_seqlens, left_out)
        plan = None
        if q.is_cuda and not enable_batch_invariant:
            plan = _dense_plan(meta, q, k_cache, block_table, cache_seqlens, causal, window)
        result = tilewise.dense_decode(
            q,
            k_cache,
            block_table,
            cache_seqlens,
            softmax_scale,
            head_dim_v,
            causal,
            window,
            attn_sink,
            batch_invariant=enable_batch_invariant,
            plan=plan,
            out=out,
        )
        # Only now that the call was accepted.
        meta._plan = plan if plan is not None else meta._plan
    _fill_schedule(meta, config, q)
    return result


@named_errors(("sparse_prefill_fwd",), {"softmax_scale": "sm_scale"})
def flash_mla_sparse_fwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int = _HEAD_DIM_V,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    *,
    indexer_topk: int = 0,
) -> tuple[torch.Tensor, ...]:
    """Prefill in which each query attends to the keys that its list names.

    Carries no autograd, as in FlashMLA: `tilewise.sparse_prefill_fwd` is differentiable.

    Args:
        q: bfloat16 [s_q, h_q, d_qk], d_qk 576 or 512.
        kv: bfloat16 [s_kv, 1, d_qk]; V is its first 512 columns.
        indices: int32 [s_q, 1, topk]; entries outside 0 .. s_kv - 1 are skipped.
        sm_scale: factor of the scores.
        d_v: 512.
        attn_sink: float32 [h_q]: out is multiplied by exp(lse) / (exp(lse) + exp(sink)).
        topk_length: int32 [s_q]: how many entries of a list count, from its front.
        out: bfloat16 [s_q, h_q, 512], written and returned; None: a new tensor.
        indexer_topk: n > 0 also returns lse_indexer.

    Returns:
        out, max_logits and lse, both float32 [s_q, h_q], natural logarithm; with indexer_topk = n > 0 also
        lse_indexer [s_q, h_q], over the first n entries of the list alone. A query without keys: out 0,
        lse +inf, max_logits -inf.

    Raises:
        TypeError: refused here. RuntimeError: refused by the operator.

    Source: docs/operators.md, section 3.
    """
    if torch.is_grad_enabled():
        reason = "the function is not differentiable (tilewise.sparse_prefill_fwd is)"
        tensors = {"q": q, "kv": kv, "attn_sink": attn_sink, "out": out}
        refuse_grad("flash_mla_sparse_fwd", tensors, reason)
    return tilewise.sparse_prefill_fwd(
        q, kv, indices, sm_scale, d_v, topk_length, attn_sink, indexer_topk=indexer_topk, out=out
    )


@named_errors((), {})
def get_mla_metadata_dense_fp8(
    cache_seqlens: torch.Tensor, num_q_tokens_per_head_k: int, num_heads_k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """A schedule for `flash_mla_with_kvcache_fp8`, which plans by itself: two tensors to pass on.

    Args:
        cache_seqlens: int32 [b].
        num_q_tokens_per_head_k: s_q * h_q / h_kv.
        num_heads_k: h_kv.

    Returns:
        tile_scheduler_metadata int32 [1, 8] and num_splits int32 [b + 1], all zeros.
    """
    if cache_seqlens.dtype != torch.int32 or cache_seqlens.dim() != 1:
        raise ValueError(
            f"get_mla_metadata_dense_fp8: cache_seqlens must be int32 [b], got {describe(cache_seqlens)}"
        )
    return _empty_schedule(cache_seqlens, cache_seqlens.shape[0])


@named_errors(("dense_decode",), {"d_v": "head_dim_v"})
def flash_mla_with_kvcache_fp8(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    head_dim_v: int,
    tile_scheduler_metadata: torch.Tensor,
    num_splits: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    descale_q: torch.Tensor | None = None,
    descale_k: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense decode with q and the cache in float8_e4m3fn.

    Args:
        q: float8_e4m3fn [b, s_q, h_q, d_qk], d_qk 576 or 512.
        k_cache: float8_e4m3fn [num_blocks, page, h_kv, d_qk]; V is its first 512 columns.
        block_table: int32 [b, max_blocks].
        cache_seqlens: int32 [b], keys in each sequence.
        head_dim_v: 512.
        tile_scheduler_metadata, num_splits: what `get_mla_metadata_dense_fp8` returned; unused.
        softmax_scale: factor of the scores; None: d_qk ** -0.5.
        causal: query i of s_q sees keys up to `cache_seqlens - s_q + i`.
        descale_q, descale_k: float32 [1]: what values of q and of the cache are multiplied by.

    Returns:
        out bfloat16 [b, s_q, h_q, 512] and lse [b, h_q, s_q] float32, natural logarithm.

    Raises:
        TypeError, ValueError: refused here. RuntimeError: refused by the operator.

    Source: docs/operators.md, section 1.
    """
    for name, value in (("tile_scheduler_metadata", tile_scheduler_metadata), ("num_splits", num_splits)):
        if not isinstance(value, torch.Tensor):
            raise TypeError(
                f"flash_mla_with_kvcache_fp8: {name} must be a tensor of get_mla_metadata_dense_fp8, "
                f"got {describe(value)}"
            )
    if q.dtype != torch.float8_e4m3fn:
        raise ValueError(f"flash_mla_with_kvcache_fp8: q must be float8_e4m3fn, got {describe(q)}")
    if softmax_scale is None:
        softmax_scale = default_scale(q)
    return tilewise.dense_decode(
        q,
        k_cache,
        block_table,
        cache_seqlens,
        softmax_scale,
        head_dim_v,
        causal,
        descale_q=descale_q,
        descale_k=descale_k,
    )
