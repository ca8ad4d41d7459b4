"""Calls of the training operators that are refused, and the whole texts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilewise
import torch
from ops_calls import (
    HEADS,
    backward,
    bf16,
    block_sparse_prefill_fwd,
    dense_prefill_fwd,
    expand_block_selection,
    fp32,
    i32,
    selection,
    sparse_prefill_bwd,
)

dense, dense_sink = dense_prefill_fwd(), dense_prefill_fwd(sink_bias=bf16(HEADS))
dense_bwd, dense_sink_bwd = backward(dense), backward(dense_sink)
blocks = block_sparse_prefill_fwd(selection())
blocks_bwd = backward(blocks)
expand = expand_block_selection()
tokens, tokens_target = sparse_prefill_bwd(), sparse_prefill_bwd(fp32(HEADS), kl_target=True)


def invert(**changes: Any) -> Callable[[], Any]:
    arguments = {"q2k": selection(), "num_kv_blocks": 3, **changes}
    return lambda: tilewise.invert_block_selection(**arguments)


TRAINING_ERRORS: list[tuple[Callable[[], Any], str]] = [
    (
        dense.changed(q=fp32(160, HEADS, 128)),
        "dense_prefill_fwd: q must be bfloat16 or float16 [total_q, h_q, d_qk], got float32 [160, 4, 128]",
    ),
    (
        dense.changed(k=dense.args[1].half()),
        "dense_prefill_fwd: k must be bfloat16 [total_k, h_kv, 128], got float16 [190, 2, 128]",
    ),
    (
        dense.changed(k=bf16(190, 3, 128)),
        "dense_prefill_fwd: k must be of h_kv a divisor of h_q 4, got h_kv 3",
    ),
    (
        dense.changed(v=bf16(190, 2, 64)),
        "dense_prefill_fwd: q and v must be of d_qk/d_v 192/128, 128/128 or 64/64, got 128/64",
    ),
    (
        dense.changed(cu_seqlens_q=dense.args[3].long()),
        "dense_prefill_fwd: cu_seqlens_q must be int32 [b + 1], got int64 [3]",
    ),
    (
        dense.changed(cu_seqlens_k=i32(0, 190)),
        "dense_prefill_fwd: cu_seqlens_k must be int32 [3], got int32 [2]",
    ),
    (
        dense.changed(max_seqlen_q=-1),
        "dense_prefill_fwd: max_seqlen_q must be 0 to 2147483647, got -1",
    ),
    (
        dense.changed(softmax_scale=float("nan")),
        "dense_prefill_fwd: softmax_scale must be finite, got nan",
    ),
    (
        dense.changed(window=(-2, 0)),
        "dense_prefill_fwd: window must be a pair of numbers of at least -1, got (-2, 0)",
    ),
    (
        dense.changed(window=(1, 2, 3)),
        "dense_prefill_fwd: window must be a pair of numbers of at least -1, got (1, 2, 3)",
    ),
    (
        dense.changed(sink_bias=fp32(HEADS + 1)),
        "dense_prefill_fwd: sink_bias must be float32, float16 or bfloat16 [4], got float32 [5]",
    ),
    (
        dense.changed(out=bf16(160, HEADS, 256)[..., ::2]),
        "dense_prefill_fwd: out must be contiguous in its last dimension, got stride(2) 2",
    ),
    (
        dense_bwd.changed(d_out=bf16(160, HEADS, 64)),
        "dense_prefill_bwd: d_out must be bfloat16 [160, 4, 128], got bfloat16 [160, 4, 64]",
    ),
    (
        dense_bwd.changed(lse=fp32(HEADS, 160)),
        "dense_prefill_bwd: lse must be float32 [160, 4], got float32 [4, 160]",
    ),
    (
        dense_bwd.changed(dk=bf16(190, HEADS, 128)),
        "dense_prefill_bwd: dk must be bfloat16 [190, 2, 128], got bfloat16 [190, 4, 128]",
    ),
    (
        dense_bwd.changed(d_sink=fp32(HEADS)),
        "dense_prefill_bwd: d_sink must be left out without sink_bias, got float32 [4]",
    ),
    (
        dense_sink_bwd.changed(d_sink=fp32(HEADS)),
        "dense_prefill_bwd: d_sink must be bfloat16 [4], got float32 [4]",
    ),
    (
        blocks.changed(q2k=selection().long()),
        "block_sparse_prefill_fwd: q2k must be int32 [rows, n], got int64 [5, 3]",
    ),
    (
        blocks.changed(q2k=selection(3)),
        "block_sparse_prefill_fwd: q2k must be int32 [4, rows, n], got int32 [3, 5, 3]",
    ),
    (
        blocks.changed(q_block=96),
        "block_sparse_prefill_fwd: q_block must be a positive multiple of 64, got 96",
    ),
    (
        blocks.changed(kv_block=256),
        "block_sparse_prefill_fwd: kv_block must be 64 or 128, got 256",
    ),
    (
        blocks.changed(q=bf16(160, HEADS, 64), k=bf16(190, 2, 64), v=bf16(190, 2, 64)),
        "block_sparse_prefill_fwd: q and v must be of d_qk/d_v 192/128 or 128/128, got 64/64",
    ),
    (
        blocks_bwd.changed(q2k=i32(1, 2)),
        "block_sparse_prefill_bwd: q2k must be int32 [4, rows, n], got int32 [2]",
    ),
    (
        blocks_bwd.changed(out=blocks_bwd.args[4].half()),
        "block_sparse_prefill_bwd: out must be bfloat16 [160, 4, 128], got float16 [160, 4, 128]",
    ),
    (
        blocks_bwd.changed(kv_block=0),
        "block_sparse_prefill_bwd: kv_block must be 64 or 128, got 0",
    ),
    (
        tokens.changed(d_out=fp32(5, HEADS, 512)),
        "sparse_prefill_bwd: d_out must be bfloat16 [5, 4, 512], got float32 [5, 4, 512]",
    ),
    (
        tokens.changed(out=bf16(5, HEADS, 576)),
        "sparse_prefill_bwd: out must be bfloat16 [5, 4, 512], got bfloat16 [5, 4, 576]",
    ),
    (tokens.changed(lse=fp32(5)), "sparse_prefill_bwd: lse must be float32 [5, 4], got float32 [5]"),
    (
        tokens.changed(kv=bf16(9, 1, 512)),
        "sparse_prefill_bwd: kv must be bfloat16 [s_kv, 1, 576], got bfloat16 [9, 1, 512]",
    ),
    (
        tokens.changed(dkv=bf16(8, 1, 576)),
        "sparse_prefill_bwd: dkv must be bfloat16 [9, 1, 576], got bfloat16 [8, 1, 576]",
    ),
    (
        tokens.changed(d_sink=fp32(HEADS)),
        "sparse_prefill_bwd: d_sink must be left out without sink_bias, got float32 [4]",
    ),
    (
        tokens.changed(kl_target_out=fp32(5, 6)),
        "sparse_prefill_bwd: kl_target_out must be left out where kl_target is False, got float32 [5, 6]",
    ),
    (
        tokens_target.changed(kl_target_out=fp32(6, 5)),
        "sparse_prefill_bwd: kl_target_out must be float32 [5, 6], got float32 [6, 5]",
    ),
    (
        lambda: torch.ops.tilewise.sparse_prefill_bwd.out(
            *tokens.args, kl_target=True, dq=bf16(5, HEADS, 576), dkv=bf16(9, 1, 576)
        ),
        "sparse_prefill_bwd: kl_target_out must be given where kl_target is True, got nothing",
    ),
    (expand.changed(factor=0), "expand_block_selection: factor must be 1 to 429496729, got 0"),
    (
        expand.changed(q2k=fp32(5, 3)),
        "expand_block_selection: q2k must be int32 [rows, n], got float32 [5, 3]",
    ),
    (
        expand.changed(out=torch.zeros(15, 2, dtype=torch.int32)),
        "expand_block_selection: out must be int32 [15, 3], got int32 [15, 2]",
    ),
    (
        invert(num_kv_blocks=-1),
        "invert_block_selection: num_kv_blocks must be 0 to 2147483646, got -1",
    ),
    (
        invert(q2k=i32(1, 2)),
        "invert_block_selection: q2k must be int32 [h_q, rows, n], got int32 [2]",
    ),
    (
        invert(row_ptr=i32(0, 0, 0)),
        "invert_block_selection: row_ptr must be int32 [4], got int32 [3]",
    ),
    (
        invert(q_blocks=i32(0, 0, 0)),
        "invert_block_selection: q_blocks must be int32 [15], got int32 [3]",
    ),
]
