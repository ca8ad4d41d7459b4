"""FlashMLASchedMeta: what fills it, what it refuses, and that a kept one changes no result."""

from __future__ import annotations

from typing import Any

import flash_mla
import pytest
import torch
from compat_calls import Kwargs, dense, extra, meta, sparse
from flash_mla import FlashMLASchedMeta
from ops_calls import HEADS, assert_same_bits, bf16, i32, indices, pages

run = flash_mla.flash_mla_with_kvcache


def test_dense_call_fills_it() -> None:
    call = dense(causal=True)
    run(**call)
    filled = call["tile_scheduler_metadata"]
    assert filled.have_initialized
    assert filled.config == FlashMLASchedMeta.Config(2, 3, HEADS, 4, 1, True, False, None, None, None)
    assert (filled.tile_scheduler_metadata.dtype, filled.tile_scheduler_metadata.shape) == (
        torch.int32,
        (1, 8),
    )
    assert (filled.num_splits.dtype, filled.num_splits.shape) == (torch.int32, (3,))
    assert not filled.tile_scheduler_metadata.any()
    assert not filled.num_splits.any()


def test_a_filled_one_is_left_alone() -> None:
    kept = meta()
    run(**dense(tile_scheduler_metadata=kept))
    before = [kept.config, kept.tile_scheduler_metadata, kept.num_splits]
    run(**dense(tile_scheduler_metadata=kept))
    after = [kept.config, kept.tile_scheduler_metadata, kept.num_splits]
    assert all(one is other for one, other in zip(before, after, strict=True))


def test_sparse_call_fills_it() -> None:
    call = sparse(**extra())
    run(**call)
    config = FlashMLASchedMeta.Config(2, 1, HEADS, 4, 1, False, True, 6, 2, 3)
    assert call["tile_scheduler_metadata"].config == config


def test_the_callers_tensors_stay() -> None:
    rows, splits = torch.ones(5, 8, dtype=torch.int32), i32(1, 2, 3)
    kept = FlashMLASchedMeta(tile_scheduler_metadata=rows, num_splits=splits)
    expected = run(**dense())
    for _ in range(2):
        assert_same_bits(run(**dense(tile_scheduler_metadata=kept)), expected)
        assert kept.tile_scheduler_metadata is rows
        assert kept.num_splits is splits


@pytest.mark.parametrize(
    "wrong",
    [
        sparse(causal=True),
        sparse(k_cache=pages("v4_fp8")[..., :500]),
        dense(topk_length=i32(1, 2)),
        dense(out=torch.empty(2, 3, HEADS, 512)),
    ],
    ids=["Python's", "operator's", "dense, Python's", "dense, operator's"],
)
def test_a_refused_call_leaves_it_empty(wrong: Kwargs) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        run(**wrong)
    assert wrong["tile_scheduler_metadata"] == FlashMLASchedMeta()


def test_other_lengths_and_lists_with_a_kept_one() -> None:
    kept = meta()
    for lengths in (i32(7, 5), i32(0, 8), i32(1, 3)):
        expected = run(**dense(cache_seqlens=lengths))
        assert_same_bits(run(**dense(cache_seqlens=lengths, tile_scheduler_metadata=kept)), expected)
    kept = meta()
    for seed, length in ((1, i32(6, 6)), (2, i32(0, 3)), (3, i32(9, -1))):
        call: Kwargs = {"indices": indices(2, 1, 6, below=12, seed=seed), "topk_length": length}
        expected = run(**sparse(**call))
        assert_same_bits(run(**sparse(**call, tile_scheduler_metadata=kept)), expected)


CHANGED_DENSE: dict[str, tuple[Kwargs, str]] = {
    "b": (
        {"q": bf16(1, 3, HEADS, 576), "block_table": i32(1, 1).view(1, 2), "cache_seqlens": i32(3)},
        "b 2), got b 1",
    ),
    "s_q": ({"q": bf16(2, 1, HEADS, 576)}, "s_q 3), got s_q 1"),
    "h_q": ({"q": bf16(2, 3, 2, 576)}, "h_q 4), got h_q 2"),
    "page_block_size": (
        {"k_cache": bf16(3, 8, 1, 576)},
        "page_block_size 4), got page_block_size 8",
    ),
    "h_k": ({"k_cache": bf16(3, 4, 2, 576)}, "h_k 1), got h_k 2"),
    "causal": ({"causal": True}, "causal False), got causal True"),
    "is_fp8_kvcache": ({"is_fp8_kvcache": True}, "is_fp8_kvcache False), got is_fp8_kvcache True"),
    "topk": (
        {"k_cache": bf16(3, 4, 1, 576), "indices": indices(2, 3, 5, below=12)},
        "topk None), got topk 5",
    ),
}
CHANGED_SPARSE: dict[str, tuple[Kwargs, str]] = {
    "topk": ({"indices": indices(2, 1, 5, below=12)}, "topk 6), got topk 5"),
    "extra_page_block_size": (
        {"extra_k_cache": pages("v4_fp8", n=9, page=4)},
        "extra_page_block_size 2), got extra_page_block_size 4",
    ),
    "extra_topk": (
        {"extra_indices_in_kvcache": indices(2, 1, 4, below=9)},
        "extra_topk 3), got extra_topk 4",
    ),
    "no extra": (
        {"extra_k_cache": None, "extra_indices_in_kvcache": None, "extra_topk_length": None},
        "extra_page_block_size 2), got extra_page_block_size None",
    ),
}


@pytest.mark.parametrize(
    ("first", "changes", "text"),
    [(dense(), *case) for case in CHANGED_DENSE.values()]
    + [(sparse(**extra()), *case) for case in CHANGED_SPARSE.values()],
    ids=[*CHANGED_DENSE, *CHANGED_SPARSE],
)
def test_other_shapes_and_modes_are_refused(first: Kwargs, changes: Kwargs, text: str) -> None:
    kept = meta()
    run(**{**first, "tile_scheduler_metadata": kept})
    config = kept.config
    out = torch.full((2, 3, HEADS, 512), 5.0).bfloat16()
    second: dict[str, Any] = {**first, "tile_scheduler_metadata": kept, **changes}
    with pytest.raises(ValueError) as caught:
        run(**second, out=out)
    assert str(caught.value) == (
        f"flash_mla_with_kvcache: tile_scheduler_metadata must be of the calls it was made for ({text}"
    )
    assert kept.config is config
    assert (out == 5).all()
    run(**{**second, "tile_scheduler_metadata": meta()})
