"""Calls in the forms that serving frameworks use, each against the oracle.

Their caches are allocated as bytes and viewed, their queries are reshaped and padded, their schedules live
for a step or longer.
"""

from __future__ import annotations

import flash_mla
import oracle
import pytest
import tilewise
import torch
from flash_mla import fused_norm_rope_attn_rope_cast as fused
from flash_mla.flash_mla_interface import flash_mla_sparse_fwd, flash_mla_with_kvcache, get_mla_metadata
from ops_calls import assert_same_bits, bf16, fp8, fp32, i32, indices

PAGE = 64
SCALE = 0.06
BYTE_TYPES = [torch.uint8, torch.float8_e4m3fn]


def byte_cache(record: str, d: int, blocks: int = 3, seed: int = 2) -> torch.Tensor:
    """[blocks, 64, bytes] uint8, full of rows."""
    return tilewise.quantize_kv(bf16(blocks * PAGE, d, seed=seed), record, PAGE).squeeze(2)


def assert_attention(
    out: torch.Tensor, lse: torch.Tensor | None, expected: oracle.Result, dtype: torch.dtype = torch.bfloat16
) -> None:
    oracle.assert_rows(out, expected.exact.out, expected.rounded.out, dtype)
    if lse is not None:
        oracle.assert_logs(lse, expected.exact.lse)


# ---- token-sparse attention of head size 576 ------------------------------------------------------------


@pytest.mark.parametrize("dtype", BYTE_TYPES)
@pytest.mark.parametrize("record", ["v32_fp8", "v32_nvfp4"])
def test_all_tokens_of_a_step_as_one_request(record: str, dtype: torch.dtype) -> None:
    """Tokens [T, heads, d] become one request of T queries; heads are padded with zeros to 64."""
    tokens, heads = 5, 12
    cache, query = byte_cache(record, 576).view(dtype), bf16(tokens, heads, 576)
    topk = indices(tokens, 32, below=3 * PAGE)
    schedule, _ = get_mla_metadata()
    padded = query.new_zeros((1, tokens, 64, 576))
    padded[:, :, :heads] = query.unsqueeze(0)
    out, lse = flash_mla_with_kvcache(
        q=padded,
        k_cache=cache.view(torch.uint8).unsqueeze(-2),
        block_table=torch.zeros(1, 1, dtype=torch.int32),
        head_dim_v=512,
        cache_seqlens=i32(4096),
        tile_scheduler_metadata=schedule,
        is_fp8_kvcache=True,
        indices=topk.unsqueeze(0),
        softmax_scale=SCALE,
    )
    expected = oracle.sparse_decode(query.unsqueeze(0), cache.unsqueeze(2), topk.unsqueeze(0), SCALE, record)
    assert_attention(out[:, :, :heads], lse[:, :heads], expected)


def test_requests_of_several_queries_with_a_schedule_for_the_step() -> None:
    """[tokens, heads, d] as [requests, queries, heads, d]; one schedule for all layers."""
    requests, queries = 2, 3
    schedule, _ = get_mla_metadata()
    for layer in range(3):
        cache = byte_cache("v32_fp8", 576, seed=layer)
        query = bf16(requests * queries, 16, 576, seed=layer).view(requests, queries, 16, 576)
        topk = indices(requests * queries, 24, below=3 * PAGE, seed=layer).view(requests, queries, -1)
        out, lse = flash_mla_with_kvcache(
            q=query,
            k_cache=cache.unsqueeze(-2),
            block_table=torch.zeros(requests, 1, dtype=torch.int32),
            head_dim_v=512,
            cache_seqlens=i32(4096, 4096),
            tile_scheduler_metadata=schedule,
            is_fp8_kvcache=True,
            indices=topk,
            softmax_scale=SCALE,
        )
        assert out.view(requests * queries, 16, 512).shape == (6, 16, 512)
        assert_attention(out, lse, oracle.sparse_decode(query, cache.unsqueeze(2), topk, SCALE))


def test_one_query_a_request_with_an_empty_table() -> None:
    cache, query = byte_cache("v32_fp8", 576).flatten(0, 1), bf16(4, 16, 576)
    pages, topk = indices(4, 24, below=3 * PAGE), 24
    schedule, num_splits = get_mla_metadata(
        cache_seqlens=i32(9, 9, 9, 9), num_q_tokens_per_head_k=16, num_heads_k=1, num_heads_q=16, topk=topk
    )
    out, _ = flash_mla_with_kvcache(
        q=query.view(-1, 1, 16, 576),
        k_cache=cache.view(-1, PAGE, 1, cache.shape[-1]),
        cache_seqlens=i32(9, 9, 9, 9),
        head_dim_v=512,
        tile_scheduler_metadata=schedule,
        num_splits=num_splits,
        softmax_scale=SCALE,
        indices=pages.unsqueeze(1),
        block_table=torch.empty((4, 0), dtype=torch.int32),
        is_fp8_kvcache=True,
    )
    native = (query.unsqueeze(1), cache.view(-1, PAGE, 1, cache.shape[-1]), pages.unsqueeze(1), SCALE)
    assert_attention(out, None, oracle.sparse_decode(*native))


def test_prefill_over_all_rows_of_a_bfloat16_cache() -> None:
    """The paged cache as rows, the lists as [tokens, 1, topk], heads padded by whatever was in memory."""
    tokens, heads = 6, 10
    cache, query = bf16(3, PAGE, 576, seed=2), bf16(tokens, heads, 576)
    topk, counts = indices(tokens, 16, below=3 * PAGE), i32(16, 3, 0, 7, 16, 1)
    padded = torch.full((tokens, 64, 576), float("nan"), dtype=torch.bfloat16)
    padded[:, :heads] = query
    rows = cache.view(-1, 1, cache.shape[-1])
    out, _, lse = flash_mla_sparse_fwd(padded, rows, topk.view(tokens, 1, -1), SCALE, topk_length=counts)
    expected = oracle.sparse_prefill_fwd(query, rows, topk.view(tokens, 1, -1), SCALE, topk_length=counts)
    assert_attention(out[:, :heads], lse[:, :heads], expected)

    out, _, _ = flash_mla_sparse_fwd(q=query, kv=rows, indices=topk.unsqueeze(1), sm_scale=SCALE, d_v=512)
    assert_attention(out, None, oracle.sparse_prefill_fwd(query, rows, topk.unsqueeze(1), SCALE))


# ---- a window cache beside a compressed one, head size 512 ------------------------------------------------


@pytest.mark.parametrize("compressed", [False, True])
def test_window_and_compressed_cache(compressed: bool) -> None:
    """Blocks with padding behind them, an output of the model's, a sink for the padded heads as well."""
    tokens, heads = 4, 20
    cache = byte_cache("v4_fp8", 512)
    width = cache[0].numel()
    buffer = torch.zeros(3, width + 1024, dtype=torch.uint8)
    buffer[:, :width] = cache.reshape(3, -1)
    window_cache = buffer[:, :width].view(3, PAGE, 1, -1)
    extra_cache = tilewise.quantize_kv(bf16(48, 512, seed=7), "v4_fp8", 16)
    sink = torch.full((64,), float("-inf"))
    sink[:heads] = fp32(heads)
    query, output = bf16(tokens, 64, 512), torch.zeros(tokens, 64, 512, dtype=torch.bfloat16)
    swa, swa_lengths = indices(tokens, 1, 16, below=3 * PAGE), i32(16, 2, 0, 9)
    extra = indices(tokens, 1, 8, below=48, seed=4) if compressed else None
    out, lse = flash_mla_with_kvcache(
        q=query.unsqueeze(1),
        k_cache=window_cache,
        block_table=None,
        head_dim_v=512,
        tile_scheduler_metadata=flash_mla.get_mla_metadata()[0],
        cache_seqlens=None,
        is_fp8_kvcache=True,
        indices=swa,
        topk_length=swa_lengths,
        softmax_scale=SCALE,
        attn_sink=sink,
        extra_k_cache=extra_cache if compressed else None,
        extra_indices_in_kvcache=extra,
        extra_topk_length=i32(8, 0, 1, 5) if compressed else None,
        out=output.unsqueeze(1),
    )
    expected = oracle.sparse_decode(
        query.unsqueeze(1),
        window_cache,
        swa,
        SCALE,
        topk_length=swa_lengths,
        extra_cache=extra_cache if compressed else None,
        extra_indices=extra,
        extra_topk_length=i32(8, 0, 1, 5) if compressed else None,
        attn_sink=sink,
    )
    assert out.data_ptr() == output.data_ptr()
    assert_attention(output.unsqueeze(1), lse, expected)


# ---- dense attention --------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_schedule", [False, True])
def test_dense_decode_of_a_squeezed_cache(with_schedule: bool) -> None:
    """k_cache [blocks, 64, 576] gets its head back; a batch-invariant step brings a schedule of its own."""
    cache, query = bf16(4, PAGE, 576, seed=2), bf16(2, 2, 16, 576)
    table, lengths = i32(3, 1, 0, 2).view(2, 2), i32(70, 128)
    schedule, _ = get_mla_metadata(lengths, 2 * 16, 1, is_fp8_kvcache=False)
    if with_schedule:
        schedule.tile_scheduler_metadata = torch.zeros((1, 8), dtype=torch.int32)
        schedule.num_splits = torch.zeros((3,), dtype=torch.int32)
    out, lse = flash_mla_with_kvcache(
        q=query,
        k_cache=cache.unsqueeze(-2),
        block_table=table,
        cache_seqlens=lengths,
        head_dim_v=512,
        tile_scheduler_metadata=schedule,
        softmax_scale=SCALE,
        causal=True,
        is_fp8_kvcache=False,
    )
    assert_attention(
        out, lse, oracle.dense_decode(query, cache.unsqueeze(2), table, lengths, SCALE, causal=True)
    )


def test_dense_decode_of_flat_queries() -> None:
    cache, query = bf16(4 * PAGE, 1, 576, seed=2).half(), bf16(3, 16 * 576).half()
    table, lengths = i32(3, 1, 0, 2, 0, 1).view(3, 2), torch.tensor([70, 128, 1])
    schedule, num_splits = get_mla_metadata(lengths.to(torch.int32), 16, 1)
    out, _ = flash_mla_with_kvcache(
        query.view(3, -1, 16, 576),
        cache.view(-1, PAGE, 1, 576),
        table,
        lengths.to(torch.int32),
        512,
        schedule,
        num_splits,
        SCALE,
        False,
    )
    expected = oracle.dense_decode(
        query.view(3, 1, 16, 576), cache.view(-1, PAGE, 1, 576), table, lengths, SCALE
    )
    assert_attention(out, None, expected, torch.float16)


def test_dense_fp8_decode_through_a_schedules_tensors() -> None:
    cache, query = fp8(4, PAGE, 576, seed=2), fp8(2, 1, 16, 576)
    table, lengths = i32(3, 1, 0, 2).view(2, 2), i32(70, 128)
    schedule, _ = get_mla_metadata(lengths, 16, 1, is_fp8_kvcache=True)
    schedule.tile_scheduler_metadata, schedule.num_splits = flash_mla.get_mla_metadata_dense_fp8(
        lengths, 16, 1
    )
    scale_q, scale_k = torch.tensor(0.5), torch.tensor(1.5)
    out, lse = flash_mla.flash_mla_with_kvcache_fp8(
        q=query,
        k_cache=cache.unsqueeze(-2),
        block_table=table,
        cache_seqlens=lengths,
        head_dim_v=512,
        tile_scheduler_metadata=schedule.tile_scheduler_metadata,
        num_splits=schedule.num_splits,
        softmax_scale=SCALE,
        causal=True,
        descale_q=scale_q.reshape(1),
        descale_k=scale_k.reshape(1),
    )
    expected = oracle.dense_decode(
        query,
        cache.unsqueeze(2),
        table,
        lengths,
        SCALE,
        causal=True,
        descale_q=scale_q,
        descale_k=scale_k,
    )
    assert_attention(out, lse, expected)


# ---- the fused step ----------------------------------------------------------------------------------------


def test_fused_step_by_operators_and_by_functions() -> None:
    """One pair of buffers for a step; a framework may call the operators themselves, outputs last."""
    n_decode, n_prefill, heads, groups = 3, 4, 16, 2
    tokens, width = n_decode + n_prefill, 8 * 512
    query, positions = bf16(tokens, heads, 512), torch.arange(tokens, dtype=torch.int32)
    table, sink = fp32(16, 64, seed=5), fp32(heads)
    cache, kv = byte_cache("v41_fp8", 512).unsqueeze(2), bf16(40, 1, 512, seed=3)
    extra = tilewise.quantize_kv(bf16(32, 512, seed=8), "v41_fp4", 16)
    slots, extra_slots = indices(n_decode, 16, below=3 * PAGE), indices(n_decode, 8, below=32, seed=3)
    lists = indices(n_prefill, 1, 16, below=40)
    settings = (False, 64, table, groups, 32, True, True, True)

    def buffers() -> tuple[torch.Tensor, torch.Tensor]:
        memory = torch.empty((groups, width // 128, 8), dtype=torch.int32)
        values = torch.empty((tokens, groups, width), dtype=torch.float8_e4m3fn)
        return values, memory.permute(2, 0, 1)[:tokens]

    values, scales = buffers()
    fused.decode(
        False,
        0.0,
        positions[:n_decode],
        *settings,
        query[:n_decode],
        cache,
        slots,
        SCALE,
        attn_sink=sink,
        extra_k_cache=extra,
        extra_indices_in_kvcache=extra_slots,
        out=(values[:n_decode], scales[:n_decode]),
    )
    fused.prefill(
        False,
        0.0,
        positions[n_decode:],
        *settings,
        query[n_decode:],
        kv,
        lists,
        SCALE,
        attn_sink=sink,
        out=(values[n_decode:], scales[n_decode:]),
    )

    other, other_scales = buffers()
    norm = (False, 0.0)
    torch.ops._flashmla_C.fused_norm_rope_attn_rope_cast_decode(
        *(query[:n_decode], cache, slots, SCALE, 512, sink, None, extra, extra_slots, None),
        *(*norm, positions[:n_decode], *settings, other[:n_decode], other_scales[:n_decode]),
    )
    torch.ops._flashmla_C.fused_norm_rope_attn_rope_cast_fwd(
        *(query[n_decode:], kv, lists, SCALE, 512, sink, None),
        *(*norm, positions[n_decode:], *settings, other[n_decode:], other_scales[n_decode:]),
    )
    assert_same_bits((values, scales), (other, other_scales))

    common = (table, SCALE, groups)
    oracle.assert_cast(
        values[:n_decode],
        scales[:n_decode],
        oracle.fused_decode(
            *(query[:n_decode], cache, slots, positions[:n_decode], *common),
            extra_cache=extra,
            extra_indices=extra_slots,
            attn_sink=sink,
        ),
    )
    oracle.assert_cast(
        values[n_decode:],
        scales[n_decode:],
        oracle.fused_prefill(query[n_decode:], kv, lists, positions[n_decode:], *common, attn_sink=sink),
    )
