"""Small calls of the training functions of `flash_mla`, as keyword arguments."""

from __future__ import annotations

from typing import Any

import flash_mla
import torch
from ops_calls import HEADS, K_ENDS, Q_ENDS, bf16, i32, indices, selection, varlen_tensors

Kwargs = dict[str, Any]
TOKENS = 160
ENDS = i32(0, 90, TOKENS)


def varlen(d_qk: int = 128, **changes: Any) -> Kwargs:
    q, k, v = varlen_tensors(d_qk)
    return {
        "q": q,
        "k": k,
        "v": v,
        "cu_seqlens_qo": Q_ENDS,
        "cu_seqlens_kv": K_ENDS,
        "max_seqlen_qo": 90,
        "max_seqlen_kv": 100,
        **changes,
    }


def qkvpacked(d_qk: int = 192, **changes: Any) -> Kwargs:
    return {
        "qkv": bf16(TOKENS, HEADS, 2 * d_qk + min(d_qk, 128)),
        "cu_seqlens": ENDS,
        "max_seqlen": 90,
        "head_dim_qk": d_qk,
        **changes,
    }


def kvpacked(d_qk: int = 192, **changes: Any) -> Kwargs:
    call = varlen(d_qk)
    kv = torch.cat([call.pop("k"), call.pop("v")], -1)
    return {**call, "kv": kv, "head_dim_qk": d_qk, **changes}


def blocks(d_qk: int = 192, **changes: Any) -> Kwargs:
    """300 queries and keys in blocks of 64."""
    return {
        "q": bf16(300, HEADS, d_qk, seed=1),
        "k": bf16(300, HEADS, d_qk, seed=2),
        "v": bf16(300, HEADS, 128, seed=3),
        "q2k_blocks": selection(),
        "sm_scale": 0.07,
        "kv_block_size": 64,
        "q_block_size": 64,
        **changes,
    }


def blocks_backward(call: Kwargs, **changes: Any) -> Kwargs:
    """The call of block_sparse_prefill_bwd for that of block_sparse_prefill_fwd."""
    o, lse = flash_mla.block_sparse_prefill_fwd(**call)
    return {**call, "o": o, "do_grad": bf16(*o.shape, seed=9), "lse": lse, **changes}


def tokens(**changes: Any) -> Kwargs:
    """What flash_mla_sparse_fwd and flash_mla_sparse_bwd both take."""
    return {
        "q": bf16(5, HEADS, 576),
        "kv": bf16(9, 1, 576, seed=2),
        "indices": indices(5, 1, 6, below=9),
        "sm_scale": 0.05,
        **changes,
    }


def tokens_backward(**changes: Any) -> Kwargs:
    call = tokens()
    o, _, lse = flash_mla.flash_mla_sparse_fwd(**call)
    return {
        **call,
        "o": o,
        "do_grad": bf16(*o.shape, seed=9),
        "lse": lse * 1.4426950408889634,
        "dq_acc_workspace": None,
        "dkv_acc_workspace": None,
        **changes,
    }
