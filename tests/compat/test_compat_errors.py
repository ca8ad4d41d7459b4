"""Every refusal by its whole text: the called function, its argument, what was expected, what came."""

from __future__ import annotations

import flash_mla
import pytest
import torch
from compat_calls import dense, dense_fp8, extra, sparse, sparse_fwd
from compat_errors import Case, assert_text, with_names
from ops_calls import HEADS, bf16, fp8, fp32, i32, indices, pages

with_kvcache = flash_mla.flash_mla_with_kvcache

SCHEDULE: dict[str, Case] = {
    "no schedule": Case(
        with_kvcache,
        dense(tile_scheduler_metadata=None),
        TypeError,
        "tile_scheduler_metadata must be a FlashMLASchedMeta (get_mla_metadata()[0]), got nothing",
    ),
    "old schedule": Case(
        with_kvcache,
        dense(tile_scheduler_metadata=i32(1, 2), num_splits=i32(1)),
        TypeError,
        "tile_scheduler_metadata must be a FlashMLASchedMeta (get_mla_metadata()[0]), got int32 [2]",
    ),
    "whole tuple": Case(
        with_kvcache,
        dense(tile_scheduler_metadata=flash_mla.get_mla_metadata()),
        TypeError,
        "tile_scheduler_metadata must be a FlashMLASchedMeta (get_mla_metadata()[0]), "
        "got (FlashMLASchedMeta, nothing)",
    ),
    "splits": Case(
        with_kvcache, dense(num_splits=i32(1)), TypeError, "num_splits must be None, got int32 [1]"
    ),
}
SPARSE: dict[str, Case] = {
    "causal": Case(
        with_kvcache, sparse(causal=True), ValueError, "causal must be False with indices, got True"
    ),
    "window": Case(
        with_kvcache,
        sparse(window_size=3),
        ValueError,
        "window_size must be off with indices, got (2, 0)",
    ),
    "flag": Case(
        with_kvcache,
        sparse(is_fp8_kvcache=False),
        ValueError,
        "is_fp8_kvcache must be True with indices where k_cache is not bfloat16, got False",
    ),
    "head size": Case(with_kvcache, sparse(head_dim_v=576), ValueError, "head_dim_v must be 512, got 576"),
    "index type": Case(
        with_kvcache,
        sparse(indices=indices(2, 1, 6, below=12).long()),
        RuntimeError,
        "indices must be int32 [2, 1, topk], got int64 [2, 1, 6]",
    ),
    "cache": Case(
        with_kvcache,
        sparse(k_cache=pages("v4_fp8")[..., :500]),
        RuntimeError,
        "k_cache must be uint8, int8 or float8_e4m3fn [num_blocks, page, 1, bytes] of a record for head size "
        "512 (v4_fp8 584, v41_fp8 528, v41_fp4 288, v41_main_fp4 384) or bfloat16 "
        "[num_blocks, page, 1, 512], got uint8 [3, 4, 1, 500]",
    ),
    "named record": Case(
        with_kvcache,
        sparse(kv_format="v41_fp8"),
        RuntimeError,
        "k_cache must be uint8, int8 or float8_e4m3fn [num_blocks, page, 1, 528] for record v41_fp8, "
        "got uint8 [3, 4, 1, 584]",
    ),
    "record of another head size": Case(
        with_kvcache,
        sparse(kv_format="v32_fp8"),
        RuntimeError,
        "kv_format must be auto or a record of head size 512 (v32_nope_fp8, v4_fp8, v41_fp8, v41_fp4, "
        "v41_fp8_row, v41_fp4_row, v41_main_fp4 or bf16), got v32_fp8 of head size 576",
    ),
    "unknown record": Case(
        with_kvcache,
        sparse(kv_format="v5"),
        RuntimeError,
        "kv_format must be v32_fp8, v32_nope_fp8, v4_fp8, v41_fp8, v41_fp4, v41_fp8_row, v41_fp4_row, "
        "v41_main_fp4, v32_nvfp4 or bf16, got 'v5'",
    ),
    "format": Case(
        with_kvcache,
        sparse(kv_format=("v4_fp8",)),
        TypeError,
        "kv_format must be a record's name or a pair of names (main, extra), got ('v4_fp8')",
    ),
    "format of numbers": Case(
        with_kvcache,
        sparse(kv_format=("v4_fp8", 4)),
        TypeError,
        "kv_format must be a record's name or a pair of names (main, extra), got ('v4_fp8', 4)",
    ),
    "pair of records": Case(
        with_kvcache,
        sparse(k_cache=pages("v41_fp8"), **extra("v4_fp8")),
        RuntimeError,
        "extra_k_cache must be of a record that goes with v41_fp8 (v41_fp8 or v41_fp4), got v4_fp8",
    ),
    "extra record alone": Case(
        with_kvcache,
        sparse(kv_format=("v4_fp8", "v4_fp8")),
        RuntimeError,
        "kv_format must be auto without extra_k_cache, got v4_fp8",
    ),
    "extra indices alone": Case(
        with_kvcache,
        sparse(extra_indices_in_kvcache=indices(2, 1, 3, below=9)),
        RuntimeError,
        "extra_k_cache must be given with extra_indices_in_kvcache, got nothing",
    ),
    "extra cache alone": Case(
        with_kvcache,
        sparse(extra_k_cache=pages("v4_fp8")),
        RuntimeError,
        "extra_indices_in_kvcache must be given with extra_k_cache, got nothing",
    ),
    "extra length alone": Case(
        with_kvcache,
        sparse(extra_topk_length=i32(1, 1)),
        RuntimeError,
        "extra_topk_length must be left out without extra_k_cache, got int32 [2]",
    ),
    "sink": Case(
        with_kvcache,
        sparse(attn_sink=bf16(HEADS)),
        RuntimeError,
        "attn_sink must be float32 [4], got bfloat16 [4]",
    ),
    "out": Case(
        with_kvcache,
        sparse(out=fp32(2, 1, HEADS, 512)),
        RuntimeError,
        "out must be bfloat16 [2, 1, 4, 512], got float32 [2, 1, 4, 512]",
    ),
    "scale": Case(
        with_kvcache,
        sparse(softmax_scale=float("inf")),
        RuntimeError,
        "softmax_scale must be finite, got inf",
    ),
    "q": Case(
        with_kvcache,
        sparse(q=bf16(2, HEADS, 512)),
        RuntimeError,
        "q must be bfloat16 [b, s_q, h_q, 576 or 512], got bfloat16 [2, 4, 512]",
    ),
    "q without sizes": Case(
        with_kvcache,
        sparse(q=torch.tensor(1.0)),
        RuntimeError,
        "q must be bfloat16 [b, s_q, h_q, 576 or 512], got float32 []",
    ),
    "q without columns": Case(
        with_kvcache,
        sparse(q=bf16(2, 1, HEADS, 0)),
        RuntimeError,
        "q must be bfloat16 [b, s_q, h_q, 576 or 512], got bfloat16 [2, 1, 4, 0]",
    ),
    "no tensor": Case(
        with_kvcache,
        sparse(topk_length=[4, 2]),
        TypeError,
        "topk_length must be a tensor or None, got (4, 2)",
    ),
    "q is no tensor": Case(with_kvcache, sparse(q=None), TypeError, "q must be a tensor, got nothing"),
    "head size is no number": Case(
        with_kvcache,
        dense(head_dim_v="512"),
        TypeError,
        "head_dim_v must be a whole number, got '512'",
    ),
    "out is no tensor": Case(
        with_kvcache,
        sparse(out=True),
        TypeError,
        "out must be a tensor or None, got True",
    ),
    "scale is no number": Case(
        with_kvcache,
        sparse(softmax_scale="1"),
        TypeError,
        "softmax_scale must be a number or None, got '1'",
    ),
}
DENSE: dict[str, Case] = {
    "table": Case(
        with_kvcache,
        dense(block_table=None),
        ValueError,
        "block_table must be given without indices, got nothing",
    ),
    "lengths": Case(
        with_kvcache,
        dense(cache_seqlens=None),
        ValueError,
        "cache_seqlens must be given without indices, got nothing",
    ),
    "topk_length": Case(
        with_kvcache,
        dense(topk_length=i32(1, 2)),
        ValueError,
        "topk_length must be left out without indices, got int32 [2]",
    ),
    "extra_topk_length": Case(
        with_kvcache,
        dense(extra_topk_length=i32(1, 2)),
        ValueError,
        "extra_topk_length must be left out without indices, got int32 [2]",
    ),
    "extra cache": Case(
        with_kvcache,
        dense(extra_k_cache=bf16(3, 4, 1, 576)),
        ValueError,
        "extra_k_cache must be left out without indices, got bfloat16 [3, 4, 1, 576]",
    ),
    "extra indices": Case(
        with_kvcache,
        dense(extra_indices_in_kvcache=i32(1)),
        ValueError,
        "extra_indices_in_kvcache must be left out without indices, got int32 [1]",
    ),
    "format": Case(
        with_kvcache,
        dense(kv_format="bf16"),
        ValueError,
        "kv_format must be left out without indices, got 'bf16'",
    ),
    "float8": Case(
        with_kvcache,
        dense(q=fp8(2, 3, HEADS, 576), k_cache=fp8(3, 4, 1, 576)),
        ValueError,
        "q must be bfloat16 or float16 without indices, got float8_e4m3fn [2, 3, 4, 576]",
    ),
    "cache type": Case(
        with_kvcache,
        dense(k_cache=bf16(3, 4, 1, 576).half()),
        RuntimeError,
        "k_cache must be bfloat16 [num_blocks, page, h_kv, 576], got float16 [3, 4, 1, 576]",
    ),
    "length type": Case(
        with_kvcache,
        dense(cache_seqlens=i32(7, 5).long()),
        RuntimeError,
        "cache_seqlens must be int32 [2], got int64 [2]",
    ),
    "head size": Case(with_kvcache, dense(head_dim_v=256), RuntimeError, "head_dim_v must be 512, got 256"),
    "window": Case(
        with_kvcache,
        dense(window_size=(-2, 0)),
        RuntimeError,
        "window_size must be a pair of numbers of at least -1, got (-2, 0)",
    ),
    "window, causal": Case(
        with_kvcache,
        dense(window_size=(2, 1), causal=True),
        RuntimeError,
        "window_size must be of right -1 or 0 where causal, got (2, 1)",
    ),
    "window form": Case(
        with_kvcache,
        dense(window_size=(1, 2, 3)),
        TypeError,
        "window_size must be a pair (left, right), a number of keys or None, got (1, 2, 3)",
    ),
    "window of no numbers": Case(
        with_kvcache,
        dense(window_size=(1, None)),
        TypeError,
        "window_size must be a pair (left, right), a number of keys or None, got (1, nothing)",
    ),
    "window type": Case(
        with_kvcache,
        dense(window_size=2.5),
        TypeError,
        "window_size must be a pair (left, right), a number of keys or None, got 2.5",
    ),
    "out": Case(
        with_kvcache,
        dense(out=bf16(2, 4, 3, 512)),
        RuntimeError,
        "out must be bfloat16 [2, 3, 4, 512], got bfloat16 [2, 4, 3, 512]",
    ),
    "gradient": Case(
        with_kvcache,
        dense(q=bf16(2, 3, HEADS, 576).requires_grad_()),
        RuntimeError,
        "q must not require grad, the operator is not differentiable: detach() it, or call under "
        "torch.no_grad() or torch.inference_mode()",
    ),
}
FP8: dict[str, Case] = {
    "q": Case(
        flash_mla.flash_mla_with_kvcache_fp8,
        dense_fp8(q=bf16(2, 3, HEADS, 576)),
        ValueError,
        "q must be float8_e4m3fn, got bfloat16 [2, 3, 4, 576]",
    ),
    "no descale": Case(
        flash_mla.flash_mla_with_kvcache_fp8,
        dense_fp8(descale_k=None),
        RuntimeError,
        "descale_k must be given where q is float8_e4m3fn, got nothing",
    ),
    "descale": Case(
        flash_mla.flash_mla_with_kvcache_fp8,
        dense_fp8(descale_q=fp32(2)),
        RuntimeError,
        "descale_q must be float32 [1], got float32 [2]",
    ),
    "head size": Case(
        flash_mla.flash_mla_with_kvcache_fp8,
        dense_fp8(head_dim_v=128),
        RuntimeError,
        "head_dim_v must be 512, got 128",
    ),
    "schedule": Case(
        flash_mla.flash_mla_with_kvcache_fp8,
        dense_fp8(tile_scheduler_metadata=None),
        TypeError,
        "tile_scheduler_metadata must be a tensor of get_mla_metadata_dense_fp8, got nothing",
    ),
    "splits": Case(
        flash_mla.flash_mla_with_kvcache_fp8,
        dense_fp8(num_splits=None),
        TypeError,
        "num_splits must be a tensor of get_mla_metadata_dense_fp8, got nothing",
    ),
    "metadata": Case(
        flash_mla.get_mla_metadata_dense_fp8,
        {"cache_seqlens": fp32(3), "num_q_tokens_per_head_k": 4, "num_heads_k": 1},
        ValueError,
        "cache_seqlens must be int32 [b], got float32 [3]",
    ),
    "metadata of a list": Case(
        flash_mla.get_mla_metadata_dense_fp8,
        {"cache_seqlens": [3], "num_q_tokens_per_head_k": 4, "num_heads_k": 1},
        TypeError,
        "cache_seqlens must be a tensor, got (3)",
    ),
}
PREFILL: dict[str, Case] = {
    "scale": Case(
        flash_mla.flash_mla_sparse_fwd,
        sparse_fwd(sm_scale=float("nan")),
        RuntimeError,
        "sm_scale must be finite, got nan",
    ),
    "head size": Case(
        flash_mla.flash_mla_sparse_fwd,
        sparse_fwd(d_v=128),
        RuntimeError,
        "d_v must be 512, got 128",
    ),
    "indices": Case(
        flash_mla.flash_mla_sparse_fwd,
        sparse_fwd(indices=indices(5, 6, below=9)),
        RuntimeError,
        "indices must be int32 [5, 1, topk], got int32 [5, 6]",
    ),
    "indexer": Case(
        flash_mla.flash_mla_sparse_fwd,
        sparse_fwd(indexer_topk=7),
        RuntimeError,
        "indexer_topk must be 0 to 6 (topk), got 7",
    ),
    "scale is no number": Case(
        flash_mla.flash_mla_sparse_fwd,
        sparse_fwd(sm_scale=None),
        TypeError,
        "sm_scale must be a number, got nothing",
    ),
}

CASES = with_names(schedule=SCHEDULE, sparse=SPARSE, dense=DENSE, fp8=FP8, prefill=PREFILL)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_text(case: Case) -> None:
    assert_text(case)


def test_a_refused_call_writes_nothing() -> None:
    out = torch.ones(2, 1, HEADS, 512, dtype=torch.bfloat16)
    for wrong in (sparse(causal=True), sparse(topk_length=i32(1)), sparse(attn_sink=bf16(HEADS))):
        with pytest.raises((ValueError, RuntimeError)):
            with_kvcache(**wrong, out=out)
    assert (out == 1).all()


def test_missing_and_unknown_arguments_are_pythons() -> None:
    call = sparse_fwd()
    del call["kv"]
    with pytest.raises(
        TypeError, match=r"flash_mla_sparse_fwd\(\) missing 1 required positional argument: 'kv'"
    ):
        flash_mla.flash_mla_sparse_fwd(**call)
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'window'"):
        with_kvcache(**dense(window=3))


def test_other_errors_pass() -> None:
    meta_device = {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in sparse().items()}
    out, lse = with_kvcache(**meta_device)
    assert (out.device.type, lse.shape) == ("meta", (2, HEADS, 1))
    with pytest.raises(NotImplementedError, match="tilewise::sparse_decode"):
        with_kvcache(**sparse(q=bf16(2, 1, HEADS, 512).to_sparse()))
