"""tilewise.* against the oracle, over a sampled grid of types, heads, lists, records, pages and options."""

from __future__ import annotations

import math
import random
from typing import Any

import oracle
import oracle_records
import pytest
import tilewise
import torch
from ops_calls import bf16, fp32, generator, i32
from torch import Tensor

HEADS = (1, 2, 3, 5, 7, 8, 11, 12, 16, 20, 32, 40, 64, 65, 96, 127, 128)
TOPK = (0, 1, 2, 15, 63, 64, 65, 133, 192)
PAGES = (1, 2, 3, 16, 64)
SCALES = (0.02, 0.05, 0.3)
INVALID = (-1, -2147483648, 2147483647)
INF = math.inf


def listed(n: int, lists: Tensor) -> Tensor:
    """[n], whether a row is in the lists."""
    found = torch.zeros(n, dtype=torch.bool)
    found[oracle.valid(lists.flatten(), n)] = True
    return found


class Sample:
    """Random choices of one case; the same seed makes the same case."""

    def __init__(self, seed: int) -> None:
        self.choices = random.Random(seed)
        self.seed = 1000 * (seed + 1)

    def one_of(self, *values: Any) -> Any:
        return self.choices.choice(values)

    def maybe(self, make: Any) -> Any:
        return make() if self.choices.random() < 0.5 else None

    def next_seed(self) -> int:
        self.seed += 1
        return self.seed

    def bf16(self, *shape: int) -> Tensor:
        return bf16(*shape, seed=self.next_seed())

    def fp32(self, *shape: int) -> Tensor:
        return fp32(*shape, seed=self.next_seed())

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        source = generator(self.next_seed())
        return torch.randint(low, high, shape, generator=source, dtype=torch.int32)

    def lists(self, rows: int, *shape: int) -> Tensor:
        """Indices below `rows`, every eighth or so invalid; with few rows many twice."""
        invalid = torch.tensor([*INVALID, rows, -rows - 1])[self.integers(0, 5, *shape).long()].int()
        found = self.integers(0, max(rows, 1), *shape)
        return torch.where((self.integers(0, 8, *shape) == 0) | (rows == 0), invalid, found)

    def lengths(self, topk: int, *shape: int) -> Tensor:
        return self.integers(-2, topk + 3, *shape)

    def sink(self, heads: int) -> Tensor:
        sink = self.fp32(heads) * 4
        return torch.where(self.integers(0, 6, heads) == 0, self.one_of(INF, -INF), sink)

    def view(self, x: Tensor) -> Tensor:
        """x, or the same values with gaps of NaN (of large integers) behind each row."""
        if self.one_of(True, False):
            return x
        filler = 2**30 if x.dtype == torch.int32 else math.nan
        room = torch.full((*x.shape[:-1], x.shape[-1] + 16), filler, dtype=torch.float32).to(x.dtype)
        room[..., : x.shape[-1]] = x
        return room[..., : x.shape[-1]]

    def rows(self, n: int, d: int, lists: Tensor) -> Tensor:
        """[n, 1, d]; a row that is in no list is NaN."""
        return torch.where(listed(n, lists)[:, None, None], self.bf16(n, 1, d), math.nan)

    def cache(self, record: str, page: int, d: int = 0) -> Tensor:
        d = d or (oracle_records.RECORDS[record].d if record in oracle_records.RECORDS else 512)
        return tilewise.quantize_kv(self.bf16(self.one_of(1, 37, 130), d), record, page)

    def extra(self, record: str, d: int, lengths: int, *rows: int) -> dict[str, Any]:
        """The second cache's arguments."""
        page, topk = self.one_of(*PAGES), self.one_of(*TOPK)
        cache = self.cache(record, page, d)
        return {
            "extra_cache": cache,
            "extra_indices": self.lists(cache.shape[0] * page, *rows, topk),
            "extra_topk_length": self.maybe(lambda: self.lengths(topk, lengths)),
            "extra_record": record,
        }


def assert_attention(out: Tensor, lse: Tensor, expected: oracle.Result) -> None:
    oracle.assert_rows(out, expected.exact.out, expected.rounded.out, out.dtype)
    oracle.assert_logs(lse, expected.exact.lse)


# ---- attention ----------------------------------------------------------------------------------------


def dense_case(sample: Sample) -> tuple[tuple[Any, ...], dict[str, Any]]:
    dtype = sample.one_of(torch.bfloat16, torch.float16, torch.float8_e4m3fn)
    heads, d, page = sample.one_of(*HEADS), sample.one_of(576, 512), sample.one_of(*PAGES)
    h_kv = sample.one_of(*(n for n in (1, 1, 2, 4) if heads % n == 0))
    b, s_q, blocks = sample.one_of(1, 2, 3), sample.one_of(1, 2, 5), sample.one_of(1, 3, 7)
    max_blocks = sample.one_of(1, 2, 120 // page + 1)
    q = sample.view(sample.fp32(b, s_q, heads, d).to(dtype))
    table = sample.view(sample.lists(blocks, b, max_blocks))
    cache = sample.fp32(blocks, page, h_kv, d)
    cache = torch.where(listed(blocks, table)[:, None, None, None], cache, math.nan).to(dtype)
    args = (q, cache, table, sample.integers(-1, max_blocks * page + 3, b), sample.one_of(*SCALES))
    causal = sample.one_of(True, False)
    left, right = sample.one_of(-1, 0, 3, 40), sample.one_of(-1, 0, 2)
    options = {
        "causal": causal,
        "window": (left, 0 if causal and left >= 0 else -1 if causal else right),
        "attn_sink": sample.maybe(lambda: sample.sink(heads)),
        "batch_invariant": sample.one_of(True, False),
    }
    if dtype == torch.float8_e4m3fn:
        options |= {"descale_q": sample.fp32(1).abs(), "descale_k": sample.fp32(1).abs()}
    return args, options


@pytest.mark.parametrize("seed", range(80))
def test_dense_decode(seed: int) -> None:
    args, options = dense_case(Sample(seed))
    assert_attention(*tilewise.dense_decode(*args, **options), oracle.dense_decode(*args, **options))


# Every record alone and every pair, several times each.
CACHES = [(record, None) for record in oracle_records.MAIN_NAMES] + list(oracle_records.PAIRS)


def decode_options(
    sample: Sample, main: str, extra: str | None, d: int, n: int, *rows: int
) -> dict[str, Any]:
    """Options that both decode operators have; n lengths, rows in front of a list."""
    options = {} if extra is None else sample.extra(extra, d, n, *rows)
    named = main in oracle_records.NAMED or sample.one_of(True, False)
    return options | {"record": main if named else None}


@pytest.mark.parametrize(("main", "extra"), CACHES)
@pytest.mark.parametrize("seed", range(5))
def test_sparse_decode(main: str, extra: str | None, seed: int) -> None:
    sample = Sample(100 * CACHES.index((main, extra)) + seed)
    d = sample.one_of(576, 512) if main == "bf16" else oracle_records.RECORDS[main].d
    heads, page, topk = sample.one_of(*HEADS), sample.one_of(*PAGES), sample.one_of(*TOPK)
    b, s_q = sample.one_of(1, 2, 3), sample.one_of(1, 1, 2, 3)
    cache = sample.cache(main, page, d)
    lists = sample.view(sample.lists(cache.shape[0] * page, b, s_q, topk))
    args = (sample.view(sample.bf16(b, s_q, heads, d)), cache, lists, sample.one_of(*SCALES))
    options = decode_options(sample, main, extra, d, b, b, s_q) | {
        "topk_length": sample.maybe(lambda: sample.lengths(topk, b)),
        "attn_sink": sample.maybe(lambda: sample.sink(heads)),
        "batch_invariant": sample.one_of(True, False),
    }
    assert_attention(*tilewise.sparse_decode(*args, **options), oracle.sparse_decode(*args, **options))


@pytest.mark.parametrize("seed", range(70))
def test_sparse_prefill_fwd(seed: int) -> None:
    sample = Sample(seed)
    heads, d, topk = sample.one_of(*HEADS), sample.one_of(576, 512), sample.one_of(*TOPK)
    s_q, s_kv = sample.one_of(1, 2, 5, 9), sample.one_of(0, 1, 40, 300)
    indexer_topk = sample.one_of(0, 0, min(1, topk), topk // 2, topk)
    lists = sample.view(sample.lists(s_kv, s_q, 1, topk))
    args = (sample.view(sample.bf16(s_q, heads, d)), sample.view(sample.rows(s_kv, d, lists)), lists)
    sink = sample.maybe(lambda: sample.sink(heads))
    bias = None if sink is not None else sample.maybe(lambda: sample.sink(heads))
    options = {
        "topk_length": sample.maybe(lambda: sample.lengths(topk, s_q)),
        "attn_sink": sink,
        "sink_bias": bias if bias is None else bias.to(sample.one_of(torch.bfloat16, torch.float32)),
        "indexer_topk": indexer_topk,
    }
    scale = sample.one_of(*SCALES)
    expected = oracle.sparse_prefill_fwd(*args, scale, **options)
    got = tilewise.sparse_prefill_fwd(*args, scale, **options)
    assert len(got) == (4 if indexer_topk else 3)
    assert_attention(got[0], got[2], expected)
    oracle.assert_logs(got[1], expected.exact.max_logits)
    if indexer_topk:
        oracle.assert_logs(got[3], expected.exact.lse_indexer)


@pytest.mark.parametrize("seed", range(20))
def test_combine_partials(seed: int) -> None:
    sample = Sample(seed)
    heads, n, s_q = sample.one_of(*HEADS), sample.one_of(1, 2, 7), sample.one_of(1, 3, 6)
    dtype = sample.one_of(torch.float32, torch.bfloat16, torch.float16)
    logs = sample.fp32(n, s_q, heads) * 5
    empty = sample.one_of(INF, -INF)
    logs = torch.where(sample.integers(0, 3, n, s_q, heads) == 0, empty, logs)
    partials = sample.fp32(n, s_q, heads, sample.one_of(64, 512)).to(dtype)
    options = {
        "attn_sink": sample.maybe(lambda: sample.sink(heads)),
        "base2": sample.one_of(True, False),
    }
    expected = oracle.combine_partials(partials, logs, **options)
    out, lse = tilewise.combine_partials(partials, logs, **options)
    assert out.dtype == dtype
    assert_attention(out, lse, expected)


# ---- fused attention ----------------------------------------------------------------------------------


def groups_for(sample: Sample, heads: int) -> int:
    return sample.one_of(*(n for n in (1, 2, 4, 8, heads) if heads % n == 0))


def fused_ends(sample: Sample, s_q: int, heads: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments behind the lists, and the options that all fused operators have."""
    max_pos = 40
    table = sample.fp32(max_pos, 32) * 3
    args = (
        sample.integers(-2, max_pos + 3, s_q),
        torch.cat([table.cos(), table.sin()], 1),
        sample.one_of(*SCALES),
        groups_for(sample, heads),
    )
    options = {
        "q_norm_eps": sample.one_of(None, 0.0, 1e-6),
        "attn_sink": sample.maybe(lambda: sample.sink(heads)),
    }
    return args, options


@pytest.mark.parametrize("seed", range(40))
def test_fused_prefill(seed: int) -> None:
    sample = Sample(seed)
    heads, topk = sample.one_of(*HEADS), sample.one_of(*TOPK)
    s_q, s_kv = sample.one_of(1, 2, 5), sample.one_of(0, 1, 40, 300)
    q = oracle.permuted(sample.bf16(s_q, heads, 512))
    ends, options = fused_ends(sample, s_q, heads)
    lists = sample.view(sample.lists(s_kv, s_q, 1, topk))
    args = (q, sample.rows(s_kv, 512, lists), lists, *ends)
    options["topk_length"] = sample.maybe(lambda: sample.lengths(topk, s_q))
    expected = oracle.fused_prefill(*args, **options)
    plain = torch.empty(s_q, heads, 512, dtype=torch.bfloat16)
    out_fp8, out_sf, max_logits, lse = tilewise.fused_prefill(*args, **options, out_bf16=plain)
    oracle.assert_cast(out_fp8, out_sf, expected)
    assert_attention(plain, lse, expected)
    oracle.assert_logs(max_logits, expected.exact.max_logits)


def fused_decode_case(sample: Sample, main: str, extra: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    heads, page, topk = sample.one_of(*HEADS), sample.one_of(*PAGES), sample.one_of(*TOPK)
    s_q = sample.one_of(1, 2, 4)
    q = oracle.permuted(sample.bf16(s_q, heads, 512))
    cache = sample.cache(main, page)
    ends, options = fused_ends(sample, s_q, heads)
    args = (q, cache, sample.view(sample.lists(cache.shape[0] * page, s_q, topk)), *ends)
    options |= decode_options(sample, main, extra, 512, s_q, s_q)
    options["topk_length"] = sample.maybe(lambda: sample.lengths(topk, s_q))
    return args, options


FUSED_CACHES = [
    (main, extra) for main, extra in CACHES if main == "bf16" or oracle_records.RECORDS[main].d == 512
]


@pytest.mark.parametrize(("main", "extra"), FUSED_CACHES)
@pytest.mark.parametrize("seed", range(4))
def test_fused_decode(main: str, extra: str | None, seed: int) -> None:
    sample = Sample(100 * FUSED_CACHES.index((main, extra)) + seed)
    args, options = fused_decode_case(sample, main, extra)
    expected = oracle.fused_decode(*args, **options)
    for num_splits in (None, 1, 3):
        out_fp8, out_sf, lse = tilewise.fused_decode(*args, **options, num_splits=num_splits)
        oracle.assert_cast(out_fp8, out_sf, expected)
        oracle.assert_logs(lse, expected.exact.lse)


@pytest.mark.parametrize("seed", range(20))
def test_fused_decode_partials_merge_to_the_whole(seed: int) -> None:
    sample = Sample(seed)
    args, options = fused_decode_case(sample, *sample.one_of(*FUSED_CACHES))
    num_splits = sample.one_of(1, 2, 5, 20)
    o_accum, lse_accum = tilewise.fused_decode_partials(*args, **options, num_splits=num_splits)
    assert o_accum.shape[0] == lse_accum.shape[0] == num_splits
    empty = lse_accum == -INF
    assert (o_accum[empty] == 0).all()

    sink, n_groups = options["attn_sink"], args[6]
    without_sink = oracle.fused_decode(*args, **{**options, "attn_sink": None})
    merged = oracle.combine_partials(o_accum, lse_accum, base2=True).exact
    oracle.assert_rows(merged.out, without_sink.exact.out, without_sink.rounded.out)
    oracle.assert_logs(merged.lse.float(), without_sink.exact.lse)

    expected = oracle.fused_decode(*args, **options)
    out_fp8, out_sf, lse = tilewise.combine_partials_fused(o_accum, lse_accum, sink, True, n_groups)
    oracle.assert_cast(out_fp8, out_sf, expected)
    oracle.assert_logs(lse, expected.exact.lse)


@pytest.mark.parametrize("seed", range(10))
def test_combine_partials_fused(seed: int) -> None:
    sample = Sample(seed)
    heads, n, s_q = sample.one_of(*HEADS), sample.one_of(1, 2, 7), sample.one_of(1, 3, 6)
    logs = sample.fp32(n, s_q, heads) * 5
    logs = torch.where(sample.integers(0, 3, n, s_q, heads) == 0, -INF, logs)
    args = (
        sample.fp32(n, s_q, heads, 512).to(sample.one_of(torch.float32, torch.bfloat16)),
        logs,
        sample.maybe(lambda: sample.sink(heads)),
        sample.one_of(True, False),
    )
    expected = oracle.combine_partials(*args)
    out_fp8, out_sf, lse = tilewise.combine_partials_fused(*args, groups_for(sample, heads))
    oracle.assert_cast(out_fp8, out_sf, expected)
    oracle.assert_logs(lse, expected.exact.lse)


# ---- NaN and inf in the cache -------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, INF, -INF])
def test_only_queries_that_select_a_bad_row_see_it(value: float) -> None:
    q, rows = bf16(4, 20, 576), bf16(30, 1, 576, seed=2)
    lists = torch.arange(4 * 6, dtype=torch.int32).view(4, 1, 6)
    clean = tilewise.sparse_prefill_fwd(q, rows, lists, 0.05)
    rows[8, 0, 5] = value  # the second query's
    rows[29] = value  # nobody's
    dirty = tilewise.sparse_prefill_fwd(q, rows, lists, 0.05)
    expected = oracle.sparse_prefill_fwd(q, rows, lists, 0.05)
    for i in (0, 2, 3):
        assert all(torch.equal(a[i], b[i]) for a, b in zip(dirty, clean, strict=True))
    assert expected.exact.out[1].isnan().any()
    oracle.assert_logs(dirty[1], expected.exact.max_logits)
    oracle.assert_logs(dirty[2], expected.exact.lse)
    if math.isnan(value):
        assert_attention(dirty[0], dirty[2], expected)
        assert all(x[1].isnan().all() for x in dirty)
        # All keys NaN: not lonely.
        alone = tilewise.sparse_prefill_fwd(q[:1], rows, i32(29).view(1, 1, 1), 0.05)
        assert all(x.isnan().all() for x in alone)


# ---- caches -------------------------------------------------------------------------------------------


def rows_for(record: str, n: int, seed: int) -> Tensor:
    """Rows of all magnitudes, among them groups of zeros and, where they are in a group, NaN and inf."""
    d = oracle_records.RECORDS[record].d if record != "bf16" else 576
    x = fp32(n, d, seed=seed) * torch.exp2(fp32(n, 1, seed=seed + 1) * 8)
    x[0] = 0
    x[1, ::3] = -0.0
    if record != "bf16":
        x[2, 5], x[3, 40], x[4, 300] = math.nan, INF, -INF
    return x.to(torch.bfloat16)


@pytest.mark.parametrize("record", oracle_records.NAMES)
@pytest.mark.parametrize("page", [1, 3, 16])
def test_quantised_bytes(record: str, page: int) -> None:
    x = rows_for(record, 50, seed=page)
    pages = tilewise.quantize_kv(x, record, page)
    got, expected = oracle_records.page_rows(pages), oracle_records.encode(x, record, page)
    assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("record", oracle_records.NAMES)
@pytest.mark.parametrize("page", [1, 3, 16])
def test_dequantised_values(record: str, page: int) -> None:
    pages = tilewise.quantize_kv(rows_for(record, 50, seed=page), record, page)
    if record != "bf16":  # any bytes
        memory = oracle_records.page_rows(pages)
        memory.copy_(torch.randint(0, 256, memory.shape, generator=generator(5)))
    got, expected = tilewise.dequantize_kv(pages, record), oracle_records.decode(pages, record)
    assert got.shape == expected.shape == (pages.shape[0] * page, expected.shape[1])
    same = (got.view(torch.int16) == expected.view(torch.int16)) | (got.isnan() & expected.isnan())
    assert same.all()


@pytest.mark.parametrize("record", oracle_records.NAMES)
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_appended_rows(record: str, kind: torch.dtype) -> None:
    page, x = 4, rows_for(record, 6, seed=9)
    cache = tilewise.quantize_kv(rows_for(record, 20, seed=20), record, page)
    before, fresh = cache.clone(), tilewise.dequantize_kv(tilewise.quantize_kv(x, record, page), record)
    slots = torch.tensor([7, -1, 0, 19, 20, -(2**31)], dtype=kind)
    assert tilewise.append_kv(x, cache, slots, record) is None
    got, old = tilewise.dequantize_kv(cache, record), tilewise.dequantize_kv(before, record)
    written = [7, 0, 19]
    kept = [i for i in range(20) if i not in written]
    assert torch.equal(got[written].view(torch.int16), fresh[[0, 2, 3]].view(torch.int16))
    assert torch.equal(got[kept].view(torch.int16), old[kept].view(torch.int16))


# ---- weights ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("heads", "d", "granularity"), [(1, 16, 32), (3, 48, 128), (8, 512, 32)])
def test_permute_q_b_proj(heads: int, d: int, granularity: int) -> None:
    rows, words = heads * d, 2
    columns = words * 4 * granularity
    weight = fp32(rows, columns).to(torch.float8_e4m3fn)
    scales = torch.arange(rows * words, dtype=torch.int32).view(words, rows).t()
    moved, moved_scales = tilewise.permute_q_b_proj(weight, scales, heads, d)
    h, c = torch.meshgrid(torch.arange(heads), torch.arange(d), indexing="ij")
    place = (c // 16 * heads * 16 + h * 16 + c % 16).flatten()
    assert torch.equal(moved.view(torch.uint8)[place], weight.view(torch.uint8))
    assert torch.equal(moved_scales[place], scales)
    assert moved_scales.stride() == (1, (rows + 3) // 4 * 4)


@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_permute_wv_proj(size: int) -> None:
    groups, n, width = 2, 3, size * 512
    weight = fp32(groups, n, width).to(torch.float8_e4m3fn)
    scales = torch.randint(0, 2**31 - 1, (groups, n, width // 128), generator=generator(), dtype=torch.int32)
    moved, moved_scales = tilewise.permute_wv_proj(weight, scales, size, 512)
    head, c = torch.meshgrid(torch.arange(size), torch.arange(512), indexing="ij")
    place = (c // 32 * size * 32 + head * 32 + c % 32).flatten()
    assert torch.equal(moved.view(torch.uint8)[..., place], weight.view(torch.uint8))
    place_of_scale = (place.view(-1, 32)[:, 0] // 32).flatten()
    got = moved_scales.view(torch.uint8)[..., place_of_scale]
    assert torch.equal(got, scales.view(torch.uint8))
