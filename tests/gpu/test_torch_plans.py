"""Plans of the decode operators: right for every length, evenly cut, capturable."""

from __future__ import annotations

import flash_mla
import gpu_calls
import oracle
import pytest
import tilewise
import torch
from ops_calls import as_tuple, bf16, fp32, i32, indices, pages
from torch._subclasses.fake_tensor import FakeTensorMode

PAGE = 16
PLAN_EXTRA_ITEMS = 1024  # as src/ops/decode_plan.h has it
RAGGED = (700, 0, 33, 1, 64)


def on_gpu(x: torch.Tensor) -> torch.Tensor:
    return x.to(gpu_calls.DEVICE)


def dense(
    lengths: tuple[int, ...], h_q: int = 16, s_q: int = 1, h_kv: int = 1, d: int = 576
) -> tuple[torch.Tensor, ...]:
    """q, cache, table and lengths on the host; every request has blocks of its own, in a mixed order."""
    batch, blocks = len(lengths), -(-max(RAGGED) // PAGE)
    order = torch.randperm(batch * blocks, generator=torch.Generator().manual_seed(5))
    table = order.to(torch.int32).view(batch, blocks)
    q, cache = bf16(batch, s_q, h_q, d), bf16(batch * blocks, PAGE, h_kv, d, seed=2)
    return q, cache, table, i32(*lengths)


def sparse(lengths: tuple[int, ...], topk: int = 300) -> tuple[torch.Tensor, ...]:
    batch = len(lengths)
    return (
        bf16(batch, 1, 64, 512),
        pages("v4_fp8", n=400, page=4),
        indices(batch, 1, topk, below=400),
        i32(*lengths),
    )


def assert_dense_right(args: tuple[torch.Tensor, ...], got: tuple[torch.Tensor, ...], **options) -> None:
    exact, rounded = oracle.dense_decode(*args, 0.05, **options)
    oracle.assert_rows(got[0].cpu(), exact.out, rounded.out)
    torch.testing.assert_close(got[1].cpu().double(), exact.lse, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("h_q", "s_q", "h_kv", "causal"),
    [(1, 1, 1, False), (16, 1, 1, False), (128, 1, 1, False), (64, 2, 1, True), (16, 3, 2, True)],
)
def test_dense_with_lengths_that_differ(h_q: int, s_q: int, h_kv: int, causal: bool) -> None:
    args = dense(RAGGED, h_q, s_q, h_kv)
    moved = tuple(on_gpu(x) for x in args)
    plan = tilewise.dense_decode_plan(*moved, causal)
    got = tilewise.dense_decode(*moved, 0.05, causal=causal, plan=plan)
    assert_dense_right(args, got, causal=causal)
    again = tilewise.dense_decode(*moved, 0.05, causal=causal, plan=plan)
    assert all(torch.equal(a, b) for a, b in zip(got, again, strict=True))


@pytest.mark.parametrize("planned_for", [(0,) * 5, (700,) * 5, (1, 700, 2, 700, 700)])
def test_a_plan_of_other_lengths_gives_right_results(planned_for: tuple[int, ...]) -> None:
    args = dense(RAGGED, h_q=64)
    moved = tuple(on_gpu(x) for x in args)
    plan = tilewise.dense_decode_plan(*moved[:3], on_gpu(i32(*planned_for)))
    assert_dense_right(args, tilewise.dense_decode(*moved, 0.05, plan=plan))


def test_a_window_and_a_sink() -> None:
    args = dense(RAGGED, h_q=16, s_q=2)
    moved = tuple(on_gpu(x) for x in args)
    sink = fp32(16)
    plan = tilewise.dense_decode_plan(*moved, False, (100, 0))
    got = tilewise.dense_decode(*moved, 0.05, window=(100, 0), attn_sink=on_gpu(sink), plan=plan)
    assert_dense_right(args, got, window=(100, 0), attn_sink=sink)


def test_8_bit_queries_and_cache() -> None:
    q, cache, table, lengths = dense(RAGGED, h_q=64, s_q=2)
    args = (q.to(torch.float8_e4m3fn), cache.to(torch.float8_e4m3fn), table, lengths)
    scales = {"descale_q": torch.tensor([0.5]), "descale_k": torch.tensor([1.5])}
    moved = tuple(on_gpu(x) for x in args)
    plan = tilewise.dense_decode_plan(*moved, True)
    options = {name: on_gpu(x) for name, x in scales.items()}
    got = tilewise.dense_decode(*moved, 0.05, causal=True, plan=plan, **options)
    assert_dense_right(args, got, causal=True, **scales)


def test_sparse_with_an_extra_cache() -> None:
    q, cache, lists, lengths = sparse((300, 0, 7, 64, 299))
    extra = {
        "topk_length": lengths,
        "extra_cache": pages("v4_fp8", n=200, page=8, seed=3),
        "extra_indices": indices(5, 1, 150, below=200, seed=4),
        "extra_topk_length": i32(0, 150, 3, 149, 64),
    }
    moved = tuple(on_gpu(x) for x in (q, cache, lists))
    options = {name: on_gpu(x) for name, x in extra.items()}
    plan = tilewise.sparse_decode_plan(*moved, **options)
    got = tilewise.sparse_decode(*moved, 0.05, plan=plan, **options)
    exact, rounded = oracle.sparse_decode(q, cache, lists, 0.05, **extra)
    oracle.assert_rows(got[0].cpu(), exact.out, rounded.out)


def test_sparse_with_lengths_that_differ() -> None:
    q, cache, lists, lengths = sparse((300, 0, 7, 64, 299))
    moved = tuple(on_gpu(x) for x in (q, cache, lists))
    plan = tilewise.sparse_decode_plan(*moved, topk_length=on_gpu(lengths))
    got = tilewise.sparse_decode(*moved, 0.05, topk_length=on_gpu(lengths), plan=plan)
    exact, rounded = oracle.sparse_decode(q, cache, lists, 0.05, topk_length=lengths)
    oracle.assert_rows(got[0].cpu(), exact.out, rounded.out)


def items_and_cut(plan: torch.Tensor, tiles: int, blocks_of_sm: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The items that are used, and of the query tiles that are cut: number, first slot, pieces."""
    rows = plan.cpu().view(-1, 4)
    header = rows.shape[0] - PLAN_EXTRA_ITEMS - 1
    at_once = blocks_of_sm * torch.cuda.get_device_properties(0).multi_processor_count
    items = rows[: tiles + min(at_once, PLAN_EXTRA_ITEMS)]
    cut = rows[header + 1 :][: int(rows[header, 0]), :3]
    assert int(rows[header, 1]) == (int(cut[:, 2].max()) if len(cut) else 1)
    assert int(rows[header, 2]) == tiles
    return items[items[:, 0] >= 0], cut


def test_a_long_request_is_cut_and_short_ones_are_not() -> None:
    lengths = [64] * 63 + [60_000]
    blocks = 60_000 // PAGE
    q = on_gpu(bf16(64, 1, 64, 576))
    cache = torch.zeros(blocks, PAGE, 1, 576, dtype=torch.bfloat16, device=gpu_calls.DEVICE)
    table = torch.arange(blocks, dtype=torch.int32, device=gpu_calls.DEVICE).repeat(64, 1)
    plan = tilewise.dense_decode_plan(q, cache, table, on_gpu(i32(*lengths)))
    items, cut = items_and_cut(plan, 64, 1)
    assert cut.shape[0] == 1
    tile, slot, pieces = cut[0].tolist()
    assert tile == 63
    assert pieces >= 16
    assert items.shape[0] == 63 + pieces
    long = items[items[:, 0] == 63]
    # One after another from the first tile on, without end; each with a slot of its own.
    assert long[0, 1] == 0
    assert torch.equal(long[1:, 1], long[:-1, 2])
    assert long[-1, 2] == 2**31 - 1
    assert long[:, 3].tolist() == list(range(slot, slot + pieces))
    assert (items[items[:, 0] < 63][:, 3] == -1).all()


def test_captured_with_the_call_and_replayed_with_other_lengths() -> None:
    args = dense(RAGGED, h_q=64)
    moved = tuple(on_gpu(x) for x in args)
    tilewise.dense_decode(*moved, 0.05, plan=tilewise.dense_decode_plan(*moved))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan = tilewise.dense_decode_plan(*moved)
        got = tilewise.dense_decode(*moved, 0.05, plan=plan)
    for lengths in ((3, 700, 0, 65, 128), (0, 0, 0, 0, 1)):
        moved[3].copy_(i32(*lengths))
        graph.replay()
        torch.cuda.synchronize()
        assert_dense_right((*args[:3], i32(*lengths)), got)


def test_fake_plans_look_like_real_ones() -> None:
    moved = tuple(on_gpu(x) for x in dense(RAGGED, h_q=16, s_q=3, h_kv=2))
    lists = tuple(on_gpu(x) for x in sparse((3, 4)))[:3]
    with FakeTensorMode() as mode:
        fakes = [
            *as_tuple(torch.ops.tilewise.dense_decode_plan(*(mode.from_tensor(x) for x in moved))),
            *as_tuple(torch.ops.tilewise.sparse_decode_plan(*(mode.from_tensor(x) for x in lists))),
        ]
    real = [tilewise.dense_decode_plan(*moved), tilewise.sparse_decode_plan(*lists)]
    assert [(x.dtype, x.shape, x.device) for x in fakes] == [(x.dtype, x.shape, x.device) for x in real]


def test_the_callers_plan_is_filled_and_returned() -> None:
    moved = tuple(on_gpu(x) for x in dense(RAGGED))
    new = tilewise.dense_decode_plan(*moved)
    own = torch.full_like(new, -7)
    assert tilewise.dense_decode_plan(*moved, plan=own) is own
    # Tiles of 16 rows: two blocks a multiprocessor.
    of_own, of_new = (items_and_cut(plan, len(RAGGED), 2) for plan in (own, new))
    for got, expected in zip(of_own, of_new, strict=True):
        assert torch.equal(got, expected)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda p: {"plan": p[1:]}, r"dense_decode: plan must be int32 \[\d+\], got int32 \[\d+\]"),
        (lambda p: {"plan": p.long()}, r"dense_decode: plan must be int32 \[\d+\], got int64 \[\d+\]"),
        (
            lambda p: {"plan": p, "batch_invariant": True},
            "plan must be left out where batch_invariant, got int32",
        ),
        (lambda p: {"plan": p.cpu()}, "dense_decode: plan must be on cuda:0, got cpu"),
        (
            lambda p: {"plan": torch.empty(p.numel() + 1, dtype=p.dtype, device=p.device)[1:]},
            "dense_decode: plan must be memory that starts at a multiple of 16 bytes",
        ),
    ],
)
def test_errors(change, text: str) -> None:
    moved = tuple(on_gpu(x) for x in dense(RAGGED))
    plan = tilewise.dense_decode_plan(*moved)
    with pytest.raises(RuntimeError, match=text):
        tilewise.dense_decode(*moved, 0.05, **change(plan))


@pytest.mark.parametrize("fill", [0, -1, 2**31 - 1, None])
def test_what_is_no_plan_is_not_followed(fill: int | None) -> None:
    args = dense(RAGGED, h_q=128)
    moved = tuple(on_gpu(x) for x in args)
    plan = tilewise.dense_decode_plan(*moved)
    if fill is None:
        plan.random_(-(2**31), 2**31 - 1, generator=torch.Generator(gpu_calls.DEVICE).manual_seed(1))
    else:
        plan.fill_(fill)
    assert_dense_right(args, tilewise.dense_decode(*moved, 0.05, plan=plan))


def test_a_plan_of_as_many_elements_for_other_shapes_gives_right_results() -> None:
    wide, many = dense((700,), h_q=32), dense((700, 33), h_q=16)
    plan = tilewise.dense_decode_plan(*(on_gpu(x) for x in wide))
    assert_dense_right(many, tilewise.dense_decode(*(on_gpu(x) for x in many), 0.05, plan=plan))


def test_empty_batches_and_no_tokens() -> None:
    for q_shape, lengths in (((0, 1, 16, 576), ()), ((2, 0, 16, 576), (3, 4))):
        cache = bf16(4, PAGE, 1, 576)
        table = torch.zeros(len(lengths), 2, dtype=torch.int32)
        moved = tuple(on_gpu(x) for x in (bf16(*q_shape), cache, table, i32(*lengths)))
        plan = tilewise.dense_decode_plan(*moved)
        out, lse = tilewise.dense_decode(*moved, 0.05, plan=plan)
        assert out.shape == (*q_shape[:3], 512)
        assert lse.numel() == 0
        meta, _ = flash_mla.get_mla_metadata()
        got, _ = flash_mla.flash_mla_with_kvcache(*moved, 512, meta)
        assert got.shape == out.shape
    torch.cuda.synchronize()


def test_a_refused_call_of_flash_mla_leaves_no_plan() -> None:
    q, cache, table, lengths = (on_gpu(x) for x in dense(RAGGED, h_q=64))
    meta, _ = flash_mla.get_mla_metadata()
    with pytest.raises(RuntimeError, match="flash_mla_with_kvcache: out must be"):
        flash_mla.flash_mla_with_kvcache(q, cache, table, lengths, 512, meta, out=q[:1])
    assert meta._plan is None
    with pytest.raises(RuntimeError, match="flash_mla_with_kvcache: cache_seqlens must be int32"):
        flash_mla.flash_mla_with_kvcache(q, cache, table, lengths.long(), 512, meta)


def test_flash_mla_makes_one_plan_for_a_schedule() -> None:
    args = dense(RAGGED, h_q=64)
    q, cache, table, lengths = (on_gpu(x) for x in args)
    meta, _ = flash_mla.get_mla_metadata()
    first = flash_mla.flash_mla_with_kvcache(q, cache, table, lengths, 512, meta, softmax_scale=0.05)
    plan = meta._plan
    assert plan is not None
    second = flash_mla.flash_mla_with_kvcache(q, cache, table, lengths, 512, meta, softmax_scale=0.05)
    assert meta._plan is plan
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert_dense_right(args, first)
