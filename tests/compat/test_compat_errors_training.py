"""Refusals of the training functions by their whole texts."""

from __future__ import annotations

import flash_mla
import pytest
import torch
from compat_errors import Case, assert_text, with_names
from ops_calls import HEADS, bf16, fp32, i32, selection
from training_calls import (
    blocks,
    blocks_backward,
    kvpacked,
    qkvpacked,
    tokens,
    tokens_backward,
    varlen,
)

varlen_func = flash_mla.flash_attn_varlen_func
qkvpacked_func = flash_mla.flash_attn_varlen_qkvpacked_func
kvpacked_func = flash_mla.flash_attn_varlen_kvpacked_func
blocks_fwd = flash_mla.block_sparse_prefill_fwd
blocks_bwd = flash_mla.block_sparse_prefill_bwd
sparse_bwd = flash_mla.flash_mla_sparse_bwd

WINDOW = "window_size must be a pair (left, right), a number of keys or None, got "
ADVICE = "detach() it, or call under torch.no_grad() or torch.inference_mode()"

VARLEN: dict[str, Case] = {
    "dropout": Case(varlen_func, varlen(dropout_p=0.1), ValueError, "dropout_p must be 0, got 0.1"),
    "window form": Case(varlen_func, varlen(window_size=(1, 2, 3)), TypeError, WINDOW + "(1, 2, 3)"),
    "window type": Case(varlen_func, varlen(window_size=2.5), TypeError, WINDOW + "2.5"),
    "window value": Case(
        varlen_func,
        varlen(window_size=(-2, 0)),
        RuntimeError,
        "window_size must be a pair of numbers of at least -1, got (-2, 0)",
    ),
    "type": Case(
        varlen_func,
        varlen(q=fp32(160, HEADS, 128)),
        RuntimeError,
        "q must be bfloat16 or float16 [total_q, h_q, d_qk], got float32 [160, 4, 128]",
    ),
    "head sizes": Case(
        varlen_func,
        varlen(v=bf16(190, 2, 64)),
        RuntimeError,
        "q and v must be of d_qk/d_v 192/128, 128/128 or 64/64, got 128/64",
    ),
    "query lengths": Case(
        varlen_func,
        varlen(cu_seqlens_qo=torch.zeros(3)),
        RuntimeError,
        "cu_seqlens_qo must be int32 [b + 1], got float32 [3]",
    ),
    "key lengths": Case(
        varlen_func,
        varlen(cu_seqlens_kv=i32(0, 190)),
        RuntimeError,
        "cu_seqlens_kv must be int32 [3], got int32 [2]",
    ),
    "longest query sequence": Case(
        varlen_func,
        varlen(max_seqlen_qo=-1),
        RuntimeError,
        "max_seqlen_qo must be 0 to 2147483647, got -1",
    ),
    "longest key sequence": Case(
        varlen_func,
        varlen(max_seqlen_kv=-1),
        RuntimeError,
        "max_seqlen_kv must be 0 to 2147483647, got -1",
    ),
    "no longest": Case(
        varlen_func,
        varlen(max_seqlen_kv=None),
        TypeError,
        "max_seqlen_kv must be a whole number, got nothing",
    ),
    "scale": Case(
        varlen_func,
        varlen(softmax_scale=float("inf")),
        RuntimeError,
        "softmax_scale must be finite, got inf",
    ),
    "sink": Case(
        varlen_func,
        varlen(sink_bias=fp32(3)),
        RuntimeError,
        "sink_bias must be float32, float16 or bfloat16 [4], got float32 [3]",
    ),
    "no tensor": Case(varlen_func, varlen(k=None), RuntimeError, "k must be a tensor, got None"),
    "lengths that require grad": Case(
        varlen_func,
        varlen(q=bf16(160, HEADS, 128).requires_grad_(), cu_seqlens_qo=fp32(3).requires_grad_()),
        RuntimeError,
        f"cu_seqlens_qo must not require grad, only q, k, v and sink_bias may: {ADVICE}",
    ),
}
PACKED: dict[str, Case] = {
    "dropout": Case(qkvpacked_func, qkvpacked(dropout_p=1.0), ValueError, "dropout_p must be 0, got 1.0"),
    "dropout of kv": Case(kvpacked_func, kvpacked(dropout_p=1), ValueError, "dropout_p must be 0, got 1"),
    "head size": Case(
        qkvpacked_func,
        qkvpacked(head_dim_qk=96),
        ValueError,
        "head_dim_qk must be 192, 128 or 64, got 96",
    ),
    "width": Case(
        qkvpacked_func,
        qkvpacked(head_dim_qk=128),
        ValueError,
        "qkv must be bfloat16 or float16 [total, h, 384], got bfloat16 [160, 4, 512]",
    ),
    "width of kv": Case(
        kvpacked_func,
        kvpacked(kv=bf16(190, 2, 256)),
        ValueError,
        "kv must be bfloat16 or float16 [total, h, 320], got bfloat16 [190, 2, 256]",
    ),
    "type": Case(
        qkvpacked_func,
        qkvpacked(qkv=fp32(160, HEADS, 512)),
        ValueError,
        "qkv must be bfloat16 or float16 [total, h, 512], got float32 [160, 4, 512]",
    ),
    "other type": Case(
        kvpacked_func,
        kvpacked(kv=bf16(190, 2, 320).half()),
        RuntimeError,
        "kv must be bfloat16 [total_k, h_kv, 192], got float16 [190, 2, 192]",
    ),
    "layout": Case(
        qkvpacked_func,
        qkvpacked(qkv=bf16(160, HEADS, 513)[..., :512]),
        RuntimeError,
        "qkv must be of strides of whole 16 bytes, got stride(0) of 4104 bytes",
    ),
    "lengths": Case(
        qkvpacked_func,
        qkvpacked(cu_seqlens=fp32(3)),
        RuntimeError,
        "cu_seqlens must be int32 [b + 1], got float32 [3]",
    ),
    "longest": Case(
        qkvpacked_func,
        qkvpacked(max_seqlen=-1),
        RuntimeError,
        "max_seqlen must be 0 to 2147483647, got -1",
    ),
    "window": Case(kvpacked_func, kvpacked(window_size="3"), TypeError, WINDOW + "'3'"),
}
BLOCKS: dict[str, Case] = {
    "selection": Case(
        blocks_fwd,
        blocks(q2k_blocks=selection().long()),
        RuntimeError,
        "q2k_blocks must be int32 [rows, n], got int64 [5, 3]",
    ),
    "selection for larger blocks": Case(
        blocks_fwd,
        blocks(q2k_blocks=selection()[:4], q_block_size=64),
        ValueError,
        "q2k_blocks must be of at least 5 rows for 300 queries in blocks of 64, got int32 [4, 3]",
    ),
    "scale": Case(
        blocks_fwd, blocks(sm_scale=float("nan")), RuntimeError, "sm_scale must be finite, got nan"
    ),
    "query block": Case(
        blocks_fwd,
        blocks(q_block_size=100),
        RuntimeError,
        "q_block_size must be a positive multiple of 64, got 100",
    ),
    "key block": Case(
        blocks_fwd, blocks(kv_block_size=32), RuntimeError, "kv_block_size must be 64 or 128, got 32"
    ),
    "sink": Case(
        blocks_fwd,
        blocks(attn_sink=fp32(HEADS + 1)),
        RuntimeError,
        "attn_sink must be float32, float16 or bfloat16 [4], got float32 [5]",
    ),
    "window": Case(blocks_fwd, blocks(window_size=(1,)), TypeError, WINDOW + "(1)"),
    "gradient": Case(
        blocks_fwd,
        blocks(k=bf16(300, HEADS, 192).requires_grad_()),
        RuntimeError,
        "k must not require grad, the function is not differentiable "
        f"(tilewise.block_sparse_prefill_fwd is): {ADVICE}",
    ),
    "gradient of the sink": Case(
        blocks_fwd,
        blocks(attn_sink=fp32(HEADS).requires_grad_()),
        RuntimeError,
        "attn_sink must not require grad, the function is not differentiable "
        f"(tilewise.block_sparse_prefill_fwd is): {ADVICE}",
    ),
    "lse": Case(
        blocks_bwd,
        blocks_backward(blocks(), lse=fp32(HEADS + 1, 300)),
        ValueError,
        "lse must be float32 [4, 300] or [300, 4], got float32 [5, 300]",
    ),
    "lse type": Case(
        blocks_bwd,
        blocks_backward(blocks(), lse=bf16(HEADS, 300)),
        ValueError,
        "lse must be float32 [4, 300] or [300, 4], got bfloat16 [4, 300]",
    ),
    "o": Case(
        blocks_bwd,
        blocks_backward(blocks(), o=bf16(300, HEADS, 192)),
        RuntimeError,
        "o must be bfloat16 [300, 4, 128], got bfloat16 [300, 4, 192]",
    ),
    "do_grad": Case(
        blocks_bwd,
        blocks_backward(blocks(), do_grad=fp32(300, HEADS, 128)),
        RuntimeError,
        "do_grad must be bfloat16 [300, 4, 128], got float32 [300, 4, 128]",
    ),
    "gradient of the gradient": Case(
        blocks_bwd,
        blocks_backward(blocks(), do_grad=bf16(300, HEADS, 128).requires_grad_()),
        RuntimeError,
        f"do_grad must not require grad, the operator is not differentiable: {ADVICE}",
    ),
    "factor": Case(
        flash_mla.expand_block_selection,
        {"q2k_blocks": selection(), "factor": 0},
        RuntimeError,
        "factor must be 1 to 429496729, got 0",
    ),
    "expanded selection": Case(
        flash_mla.expand_block_selection,
        {"q2k_blocks": fp32(5, 3), "factor": 2},
        RuntimeError,
        "q2k_blocks must be int32 [rows, n], got float32 [5, 3]",
    ),
}
TOKENS: dict[str, Case] = {
    "workspace type": Case(
        sparse_bwd,
        tokens_backward(dq_acc_workspace=bf16(5, HEADS, 576)),
        ValueError,
        "dq_acc_workspace must be float32 of at least 11520 elements, or None, got bfloat16 [5, 4, 576]",
    ),
    "workspace size": Case(
        sparse_bwd,
        tokens_backward(dkv_acc_workspace=fp32(9, 575)),
        ValueError,
        "dkv_acc_workspace must be float32 of at least 5184 elements, or None, got float32 [9, 575]",
    ),
    "scale": Case(
        sparse_bwd, tokens_backward(sm_scale=float("inf")), RuntimeError, "sm_scale must be finite, got inf"
    ),
    "o": Case(
        sparse_bwd,
        tokens_backward(o=bf16(5, HEADS, 576)),
        RuntimeError,
        "o must be bfloat16 [5, 4, 512], got bfloat16 [5, 4, 576]",
    ),
    "do_grad": Case(
        sparse_bwd,
        tokens_backward(do_grad=fp32(5, HEADS, 512)),
        RuntimeError,
        "do_grad must be bfloat16 [5, 4, 512], got float32 [5, 4, 512]",
    ),
    "lse": Case(
        sparse_bwd,
        tokens_backward(lse=i32(1, 2, 3)),
        RuntimeError,
        "lse must be float32 [5, 4], got int32 [3]",
    ),
    "no lse": Case(sparse_bwd, tokens_backward(lse=None), TypeError, "lse must be a tensor, got nothing"),
    "gradient": Case(
        sparse_bwd,
        tokens_backward(kv=bf16(9, 1, 576).requires_grad_()),
        RuntimeError,
        f"kv must not require grad, the operator is not differentiable: {ADVICE}",
    ),
    "gradient of the forward": Case(
        flash_mla.flash_mla_sparse_fwd,
        tokens(q=bf16(5, HEADS, 576).requires_grad_()),
        RuntimeError,
        "q must not require grad, the function is not differentiable "
        f"(tilewise.sparse_prefill_fwd is): {ADVICE}",
    ),
}

CASES = with_names(varlen=VARLEN, packed=PACKED, blocks=BLOCKS, tokens=TOKENS)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_text(case: Case) -> None:
    assert_text(case)


def test_no_refusal_depends_on_gradients_being_off() -> None:
    """What requires grad is taken where nobody wants gradients."""
    call = blocks(k=bf16(300, HEADS, 192).requires_grad_())
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            o, _ = blocks_fwd(**call)
            flash_mla.flash_mla_sparse_fwd(**tokens(q=bf16(5, HEADS, 576).requires_grad_()))
        assert not o.requires_grad
