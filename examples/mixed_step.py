#!/usr/bin/env python3
"""One step of a serving engine with decode and prefill tokens, which share one pair of output buffers.

An engine runs the tokens of a step through a layer together, but attends in two calls: decode tokens against
the paged, quantised cache, prefill tokens against rows that are still bfloat16. The GEMM behind the attention
wants all tokens in one FP8 tensor with one tensor of scales. So the engine allocates one pair for the whole
step, and either call writes its own range of tokens there: nothing is copied or concatenated afterwards.

Run it with the package installed, or with PYTHONPATH and TILEWISE_TORCH_LIBRARY naming a build's.
"""

from __future__ import annotations

import math

import tilewise
import torch
from flash_mla import fused_norm_rope_attn_rope_cast as fused

HEADS, GROUPS, D = 16, 2, 512  # query heads, groups of them in the output, channels of a head
ROPE_DIM, MAX_POS = 64, 256
PAGE, CACHED, CHUNK = 64, 200, 96  # tokens of a page, tokens in the cache, keys of the prefill chunk
NUM_DECODE, NUM_PREFILL, TOPK = 3, 10, 32
RECORD = "v4_fp8"
WIDTH = HEADS // GROUPS * D  # channels of a group


def settings(positions: torch.Tensor, cos_sin: torch.Tensor) -> dict[str, object]:
    """What both calls share: FlashMLA's eleven arguments, most of which have one value only."""
    return {
        "enable_q_norm": True,
        "rms_norm_eps": 1e-6,
        "token_positions": positions,
        "is_rope_neox_style": False,
        "rope_dim": ROPE_DIM,
        "cos_sin_cache": cos_sin,
        "n_wv_group": GROUPS,
        "num_per_channels": 32,
        "use_tma_aligned_col_major_sf": True,
        "round_sf": True,
        "use_packed_ue8m0": True,
    }


def step_buffers(tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    """out_fp8 and out_sf for all tokens of a step."""
    out_fp8 = torch.empty(tokens, GROUPS, WIDTH, dtype=torch.float8_e4m3fn)
    # One int32 holds the exponents of 128 channels. Tokens lie side by side, in columns that are padded to
    # a multiple of four: the form that a GEMM loads scales from. A range of tokens of such a tensor has the
    # column stride of the whole step, which is more than its own number of tokens needs; the operators allow
    # that, and write neither the padding nor other tokens.
    padded = (tokens + 3) // 4 * 4
    memory = torch.full((GROUPS, WIDTH // 128, padded), -1, dtype=torch.int32)
    return out_fp8, memory.permute(2, 0, 1)[:tokens]


def rope_table() -> torch.Tensor:
    """[MAX_POS, 64]: 32 cosines and then 32 sines for each position."""
    frequencies = 10000.0 ** (-torch.arange(ROPE_DIM // 2) / (ROPE_DIM // 2))
    angles = torch.arange(MAX_POS)[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1)


def main() -> None:
    torch.manual_seed(0)
    cos_sin = rope_table()
    scale = 1 / math.sqrt(D)
    # The step's queries as they leave the projection: decode tokens first, as engines order them. The
    # projection's weight went through permute_q_b_proj when the model was loaded, so that q is in the order
    # that the operators want.
    tokens = NUM_DECODE + NUM_PREFILL
    q = torch.randn(tokens, HEADS, D).to(torch.bfloat16)
    positions = torch.cat([torch.full((NUM_DECODE,), CACHED), torch.arange(NUM_PREFILL)]).int()
    decode, prefill = slice(0, NUM_DECODE), slice(NUM_DECODE, tokens)

    # Decode tokens attend to what an indexer picked from the cache, prefill tokens to rows of their chunk.
    cache = tilewise.quantize_kv(torch.randn(CACHED, D).to(torch.bfloat16), RECORD, PAGE)
    decode_indices = torch.randint(0, CACHED, (NUM_DECODE, TOPK), dtype=torch.int32)
    chunk = torch.randn(CHUNK, 1, D).to(torch.bfloat16)
    prefill_indices = torch.randint(0, CHUNK, (NUM_PREFILL, 1, TOPK), dtype=torch.int32)

    decode_args = {
        **settings(positions[decode], cos_sin),
        "q": q[decode],
        "k_cache": cache,
        "indices_in_kvcache": decode_indices,
        "sm_scale": scale,
    }
    prefill_args = {
        **settings(positions[prefill], cos_sin),
        "q": q[prefill],
        "kv": chunk,
        "indices": prefill_indices,
        "sm_scale": scale,
    }

    # The step: two calls, one pair of buffers. A range of tokens of out_fp8 is contiguous, and 32-byte
    # aligned because a token takes a multiple of 32 bytes.
    out_fp8, out_sf = step_buffers(tokens)
    fused.decode(**decode_args, out=(out_fp8[decode], out_sf[decode]))
    print(f"decode:  tokens 0..{NUM_DECODE - 1} written, {TOPK} keys each of {CACHED} in a {RECORD} cache")
    fused.prefill(**prefill_args, out=(out_fp8[prefill], out_sf[prefill]))
    print(f"prefill: tokens {NUM_DECODE}..{tokens - 1} written, {TOPK} keys each of {CHUNK} rows")

    # The same by calls that allocate, bit for bit.
    for part, separate in ((decode, fused.decode(**decode_args)), (prefill, fused.prefill(**prefill_args))):
        assert torch.equal(out_fp8[part].view(torch.uint8), separate[0].view(torch.uint8))
        assert torch.equal(out_sf[part], separate[1])
    # The padding behind the last token of each column still holds what it held.
    column_stride = out_sf.stride(2)
    padding = out_sf.as_strided((column_stride - tokens, *out_sf.shape[1:]), out_sf.stride(), tokens)
    assert (padding == -1).all()
    print(
        f"out_fp8: {list(out_fp8.shape)}, out_sf: {list(out_sf.shape)} with strides {list(out_sf.stride())}"
    )
    print("both ranges equal those of separate calls, and the padding is untouched")


if __name__ == "__main__":
    main()
