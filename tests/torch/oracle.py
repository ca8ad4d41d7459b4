"""The serving operators once more, in plain torch, and how far the library may be from it.

Everything is computed twice: in double precision (the oracle), and in the precision of a good kernel (fp32
scores and sums, bfloat16 weights of the values). An error may be twice that of the second, plus one step of
the output's type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import oracle_records
import torch
from torch import Tensor

INF = math.inf
D_V = 512
ROPE = 64
CAST_GROUP = 32
LONELY_BYTE = 105


class Attention(NamedTuple):
    """out [..., d_v]; lse, max_logits and lse_indexer [...]; in float64 or, for the bound, float32."""

    out: Tensor
    lse: Tensor
    max_logits: Tensor
    lse_indexer: Tensor | None = None


class Result(NamedTuple):
    exact: Attention
    rounded: Attention


def twice(compute: Callable[[torch.dtype], Attention]) -> Result:
    return Result(compute(torch.float64), compute(torch.float32))


# ---- one query token ----------------------------------------------------------------------------------


def log_sum(scores: Tensor) -> tuple[Tensor, Tensor]:
    """max and log-sum-exp of the last dimension: -inf and +inf where there is no key."""
    heads = scores.shape[0]
    if scores.shape[1] == 0:
        return scores.new_full((heads,), -INF), scores.new_full((heads,), INF)
    top = scores.amax(-1)
    lse = top + (scores - top[:, None]).exp().sum(-1).log()
    # A score of +inf: inf - inf has made lse a NaN, as it should.
    return top, torch.where(top == -INF, INF, lse)


def attend(q: Tensor, keys: Tensor, scale: Tensor | float, d_v: int = D_V) -> Attention:
    """q [h, d] against keys [n, d], in q's precision."""
    scores = (q @ keys.T) * scale
    top, lse = log_sum(scores)
    lonely = top == -INF
    if keys.shape[0] == 0:
        return Attention(q.new_zeros(q.shape[0], d_v), lse, top)
    weights = (scores - top[:, None]).exp()
    sums = weights.sum(-1, keepdim=True)
    if q.dtype == torch.float32:
        weights = weights.bfloat16().float()
    # Rows that are NaN must not pass it on to others through 0 * NaN; they are NaN as a whole.
    out = weights.nan_to_num() @ keys[:, :d_v].nan_to_num(0, 0, 0) / sums
    bad = (top == INF) | top.isnan() | lse.isnan()
    out = torch.where(bad[:, None], math.nan, out)
    return Attention(torch.where(lonely[:, None], 0, out), lse, top)


def with_sink(found: Attention, sink: Tensor | None) -> Attention:
    """The sink that takes its share of the output alone."""
    if sink is None:
        return found
    sink = sink.to(found.lse.dtype)
    lonely = found.max_logits == -INF
    share = torch.where(lonely, 1, 1 / (1 + (sink - found.lse).exp()))
    return found._replace(out=found.out * share[:, None])


def with_bias(found: Attention, bias: Tensor | None) -> Attention:
    """The sink that is a key without a value."""
    if bias is None:
        return found
    bias = bias.to(found.lse.dtype)
    lonely = found.max_logits == -INF
    total = torch.logaddexp(found.lse, bias)
    lse = torch.where(lonely, torch.where(bias == -INF, INF, bias), total)
    share = torch.where(lonely, 1, (found.lse - total).exp())
    return found._replace(out=found.out * share[:, None], lse=lse)


def stack(rows: list[Attention]) -> Attention:
    return Attention(
        *[None if column[0] is None else torch.stack(column) for column in zip(*rows, strict=True)]
    )


def empty(shape: tuple[int, ...], d_v: int, dtype: torch.dtype) -> Attention:
    return Attention(*(torch.zeros(*shape, *more, dtype=dtype) for more in ((d_v,), (), ())))


# ---- lists of tokens ----------------------------------------------------------------------------------


def first_entries(entries: Tensor, length: Tensor | None) -> Tensor:
    return entries if length is None else entries[: min(max(int(length), 0), len(entries))]


def valid(entries: Tensor, rows: int) -> Tensor:
    return entries[(entries >= 0) & (entries < rows)].long()


def paged_keys(cache: Tensor, record: str | None, d: int) -> Tensor:
    """[num_blocks * page, d] float32, the values that a record's tokens have."""
    return oracle_records.decode(cache, record or oracle_records.record_of(cache, d))


class Lists(NamedTuple):
    """What the tokens of one request or query are listed in: (keys, entries, length) for each cache."""

    caches: list[tuple[Tensor, Tensor, Tensor | None]]

    def keys(self, row: int, entry: tuple[int, ...]) -> Tensor:
        parts = []
        for keys, entries, length in self.caches:
            counted = first_entries(entries[entry], None if length is None else length[row])
            parts.append(keys[valid(counted, len(keys))])
        return torch.cat(parts)


def lists_of(
    d: int,
    kv_cache: Tensor,
    indices: Tensor,
    record: str | None,
    topk_length: Tensor | None,
    extra_cache: Tensor | None,
    extra_indices: Tensor | None,
    extra_topk_length: Tensor | None,
    extra_record: str | None,
) -> Lists:
    caches = [(paged_keys(kv_cache, record, d), indices, topk_length)]
    if extra_cache is not None:
        caches.append((paged_keys(extra_cache, extra_record, d), extra_indices, extra_topk_length))
    return Lists(caches)


# ---- attention operators ------------------------------------------------------------------------------


def transpose_lse(result: Result) -> Result:
    """lse as decode operators have it: [b, h_q, s_q]."""
    return Result(*(a._replace(lse=a.lse.transpose(1, 2)) for a in result))


def dense_keys(cache: Tensor, table: Tensor, length: int, position: int, causal: bool, window: Any) -> Tensor:
    """Keys [n, h_kv, d] that the query at `position` sees; positions count from the sequence's first key."""
    page = cache.shape[1]
    left, right = window
    seen = []
    for key in range(length):
        block = int(table[key // page])
        hidden = (
            not 0 <= block < cache.shape[0]
            or (causal and key > position)
            or (left >= 0 and key < position - left)
            or (right >= 0 and key > position + right)
        )
        if not hidden:
            seen.append(block * page + key % page)
    return cache.reshape(-1, *cache.shape[2:])[seen]


def dense_decode(
    q: Tensor,
    k_cache: Tensor,
    block_table: Tensor,
    cache_seqlens: Tensor,
    softmax_scale: float,
    d_v: int = D_V,
    causal: bool = False,
    window: Any = (-1, -1),
    attn_sink: Tensor | None = None,
    descale_q: Tensor | None = None,
    descale_k: Tensor | None = None,
    batch_invariant: bool = False,
) -> Result:
    b, s_q, h_q, _d = q.shape
    h_kv = k_cache.shape[2]
    scale_q = 1.0 if descale_q is None else float(descale_q)
    scale_k = 1.0 if descale_k is None else float(descale_k)

    def token(i: int, s: int, real: torch.dtype) -> Attention:
        capacity = block_table.shape[1] * k_cache.shape[1]
        length = min(max(int(cache_seqlens[i]), 0), capacity)
        keys = dense_keys(k_cache, block_table[i], length, length - s_q + s, causal, window).to(real)
        groups = q[i, s].to(real).view(h_kv, h_q // h_kv, -1)
        scale = softmax_scale * scale_q * scale_k
        parts = [attend(groups[g], keys[:, g], scale, d_v) for g in range(h_kv)]
        found = Attention(*(torch.cat(c) for c in zip(*(p[:3] for p in parts), strict=True)))
        return with_sink(found._replace(out=found.out * scale_k), attn_sink)

    def compute(real: torch.dtype) -> Attention:
        if b * s_q == 0:
            return empty((b, s_q, h_q), d_v, real)
        return stack([stack([token(i, s, real) for s in range(s_q)]) for i in range(b)])

    return transpose_lse(twice(compute))


def sparse_decode(
    q: Tensor,
    kv_cache: Tensor,
    indices: Tensor,
    softmax_scale: float,
    record: str | None = None,
    topk_length: Tensor | None = None,
    extra_cache: Tensor | None = None,
    extra_indices: Tensor | None = None,
    extra_topk_length: Tensor | None = None,
    extra_record: str | None = None,
    attn_sink: Tensor | None = None,
    batch_invariant: bool = False,
) -> Result:
    b, s_q, h_q, d = q.shape
    extra = (extra_cache, extra_indices, extra_topk_length, extra_record)
    lists = lists_of(d, kv_cache, indices, record, topk_length, *extra)

    def compute(real: torch.dtype) -> Attention:
        if b * s_q == 0:
            return empty((b, s_q, h_q), D_V, real)

        def token(i: int, s: int) -> Attention:
            found = attend(q[i, s].to(real), lists.keys(i, (i, s)).to(real), softmax_scale)
            return with_sink(found, attn_sink)

        return stack([stack([token(i, s) for s in range(s_q)]) for i in range(b)])

    return transpose_lse(twice(compute))


def sparse_prefill_fwd(
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    softmax_scale: float,
    d_v: int = D_V,
    topk_length: Tensor | None = None,
    attn_sink: Tensor | None = None,
    sink_bias: Tensor | None = None,
    indexer_topk: int = 0,
) -> Result:
    rows = kv[:, 0]

    def compute(real: torch.dtype) -> Attention:
        if q.shape[0] == 0:
            return empty((0, q.shape[1]), d_v, real)

        def token(s: int) -> Attention:
            counted = first_entries(indices[s, 0], None if topk_length is None else topk_length[s])
            query = q[s].to(real)
            found = attend(query, rows[valid(counted, len(rows))].to(real), softmax_scale, d_v)
            found = with_bias(with_sink(found, attn_sink), sink_bias)
            if not indexer_topk:
                return found
            leading = rows[valid(counted[:indexer_topk], len(rows))].to(real)
            return found._replace(lse_indexer=log_sum((query @ leading.T) * softmax_scale)[1])

        return stack([token(s) for s in range(q.shape[0])])

    return twice(compute)


def combine_partials(
    out_partials: Tensor, lse_partials: Tensor, attn_sink: Tensor | None = None, base2: bool = False
) -> Result:
    def compute(real: torch.dtype) -> Attention:
        logs = lse_partials.to(real) * (math.log(2) if base2 else 1)
        used = ~lse_partials.isinf()
        logs = torch.where(used, logs, -INF)
        lse = torch.where(used.any(0), torch.logsumexp(logs, 0), INF)
        weights = torch.where(used, (logs - lse).exp(), 0)
        values = torch.where(used[..., None], out_partials.to(real), 0)
        out = (weights[..., None] * values).sum(0)
        if attn_sink is not None:
            share = 1 / (1 + (attn_sink.to(real) - lse).exp())
            out = torch.where(used.any(0)[..., None], out * share[..., None], 0)
        return Attention(out, lse, torch.zeros_like(lse))

    return twice(compute)


# ---- fused operators ----------------------------------------------------------------------------------


def unpermuted(q: Tensor) -> Tensor:
    """[s_q, h_q, 512] in the plain order, from the order of permute_q_b_proj."""
    s_q, h_q, d = q.shape
    return q.reshape(s_q, d // 16, h_q, 16).transpose(1, 2).reshape(s_q, h_q, d)


def permuted(q: Tensor) -> Tensor:
    s_q, h_q, d = q.shape
    return q.view(s_q, h_q, d // 16, 16).transpose(1, 2).reshape(s_q, h_q, d)


def rotated(x: Tensor, cos_sin: Tensor, backwards: bool = False) -> Tensor:
    """[h, d] with its last 64 columns turned, pair by pair; cos_sin [64]."""
    cos, sin = cos_sin[: ROPE // 2], cos_sin[ROPE // 2 :]
    sin = -sin if backwards else sin
    even, odd = x[:, -ROPE::2], x[:, -ROPE + 1 :: 2]
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2)
    return torch.cat([x[:, :-ROPE], turned], dim=-1)


def fused(
    q: Tensor,
    keys_of: Callable[[int], Tensor],
    token_positions: Tensor,
    cos_sin_cache: Tensor,
    softmax_scale: float,
    q_norm_eps: float | None,
    attn_sink: Tensor | None,
) -> Result:
    """The fused operators up to the cast; q as the operators take it, keys_of(token) [n, 512]."""
    plain = unpermuted(q)

    def compute(real: torch.dtype) -> Attention:
        if q.shape[0] == 0:
            return empty(tuple(q.shape[:2]), D_V, real)

        def token(s: int) -> Attention:
            position = min(max(int(token_positions[s]), 0), cos_sin_cache.shape[0] - 1)
            raw = plain[s].to(real)
            scale: Tensor | float = softmax_scale
            if q_norm_eps is not None:
                scale = (softmax_scale * (raw.square().mean(-1) + q_norm_eps).rsqrt())[:, None]
            # Both arithmetics take the q that was rounded to bfloat16, once.
            turned = rotated(plain[s].double(), cos_sin_cache[position].double()).bfloat16().to(real)
            found = with_sink(attend(turned, keys_of(s).to(real), scale), attn_sink)
            return found._replace(out=rotated(found.out, cos_sin_cache[position].to(real), backwards=True))

        return stack([token(s) for s in range(q.shape[0])])

    return twice(compute)


def fused_prefill(
    q: Tensor,
    kv: Tensor,
    indices: Tensor,
    token_positions: Tensor,
    cos_sin_cache: Tensor,
    softmax_scale: float,
    n_groups: int,
    q_norm_eps: float | None = None,
    topk_length: Tensor | None = None,
    attn_sink: Tensor | None = None,
) -> Result:
    rows = kv[:, 0]

    def keys_of(s: int) -> Tensor:
        counted = first_entries(indices[s, 0], None if topk_length is None else topk_length[s])
        return rows[valid(counted, len(rows))]

    return fused(q, keys_of, token_positions, cos_sin_cache, softmax_scale, q_norm_eps, attn_sink)


def fused_decode(
    q: Tensor,
    kv_cache: Tensor,
    indices: Tensor,
    token_positions: Tensor,
    cos_sin_cache: Tensor,
    softmax_scale: float,
    n_groups: int,
    q_norm_eps: float | None = None,
    record: str | None = None,
    topk_length: Tensor | None = None,
    extra_cache: Tensor | None = None,
    extra_indices: Tensor | None = None,
    extra_topk_length: Tensor | None = None,
    extra_record: str | None = None,
    attn_sink: Tensor | None = None,
    num_splits: int | None = None,
) -> Result:
    extra = (extra_cache, extra_indices, extra_topk_length, extra_record)
    lists = lists_of(D_V, kv_cache, indices, record, topk_length, *extra)

    def keys_of(s: int) -> Tensor:
        return lists.keys(s, (s,))

    return fused(q, keys_of, token_positions, cos_sin_cache, softmax_scale, q_norm_eps, attn_sink)


# ---- the cast -----------------------------------------------------------------------------------------


def unpacked(out_fp8: Tensor, out_sf: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [s_q, h_q, 16, 32] as float64, their bytes, and exponent bytes [s_q, h_q, 16]."""
    s_q, n_groups, width = out_fp8.shape
    size = width // D_V

    def plain(x: Tensor, columns: int) -> Tensor:
        return x.reshape(s_q, n_groups, 16, size, columns).transpose(2, 3).reshape(s_q, -1, 16, columns)

    codes = plain(out_fp8.contiguous().view(torch.uint8), CAST_GROUP)
    exponents = plain(out_sf.contiguous().view(torch.uint8), 1)[..., 0]
    return codes.view(torch.float8_e4m3fn).double(), codes, exponents.int()


def exponent_byte(amax: Tensor) -> Tensor:
    """127 + ceil(log2(max(amax, 1e-4) / 448))."""
    mantissa, exponent = torch.frexp(amax.double().clamp(min=1e-4) / 448)
    return 127 + torch.where(mantissa == 0.5, exponent - 1, exponent)


def e4m3_step(x: Tensor) -> Tensor:
    """Distance of neighbouring e4m3 values around a magnitude."""
    exponent = torch.frexp(x.abs()).exponent - 1
    return torch.exp2((exponent.clamp(min=-6) - 3).double())


def assert_cast(out_fp8: Tensor, out_sf: Tensor, result: Result) -> None:
    """Dequantised values within the attention's bound and one code; exponent bytes as far as that bound."""
    exact, rounded = (a.out.double().unflatten(-1, (16, CAST_GROUP)) for a in result)
    values, codes, exponents = unpacked(out_fp8, out_sf)
    lonely = result.exact.lse == INF
    assert (codes[lonely] == 0).all() and (exponents[lonely] == LONELY_BYTE).all()
    nan = exact.isnan()
    assert torch.equal(codes[nan], torch.full_like(codes[nan], 0x7F))
    assert not values[~nan].isnan().any()

    whole = ~nan.flatten(-2).any(-1) & ~lonely
    exact, rounded, values, exponents = (x[whole] for x in (exact, rounded, values, exponents))
    bound = row_bound(exact.flatten(-2), rounded.flatten(-2), torch.bfloat16)
    amax = exact.abs().amax(-1)
    assert (exponents >= exponent_byte(amax - bound)).all()
    assert (exponents <= exponent_byte(amax + bound)).all()

    right_scale = torch.exp2((exponent_byte(amax) - 127).double())[..., None]
    expected = (exact / right_scale).float().to(torch.float8_e4m3fn).double() * right_scale
    scale = torch.exp2((exponents - 127).double())[..., None]
    actual = values * scale
    step = torch.maximum(e4m3_step(expected / right_scale) * right_scale, e4m3_step(values) * scale)
    error = (actual - expected).abs() - bound[..., None] - step
    assert error.numel() == 0 or error.max() <= 0, f"an error of {error.max()} above the bound"


# ---- bounds -------------------------------------------------------------------------------------------


def ulp(magnitude: Tensor, dtype: torch.dtype) -> Tensor:
    info = torch.finfo(dtype)
    exponent = torch.frexp(magnitude.double().clamp(min=info.tiny)).exponent - 1
    return torch.exp2(exponent.double()) * info.eps


def row_bound(exact: Tensor, rounded: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., 1] from rows [..., d]: twice what the rounded arithmetic is off, and a step of the output."""
    off = (rounded.double() - exact).abs().amax(-1, keepdim=True)
    return 2 * off + ulp(exact.abs().amax(-1, keepdim=True), dtype)


def assert_rows(got: Tensor, exact: Tensor, rounded: Tensor, dtype: torch.dtype | None = None) -> None:
    """Rows within their bounds; where the oracle has a NaN or an inf, it is in the same places."""
    assert got.shape == exact.shape
    got, finite = got.double(), exact.isfinite()
    assert torch.equal(
        torch.where(finite, 0, got).nan_to_num(1, 2, 3), torch.where(finite, 0, exact).nan_to_num(1, 2, 3)
    )
    assert got[finite].isfinite().all()
    whole = finite.all(-1)
    got, exact, rounded = got[whole], exact[whole], rounded[whole]
    if not exact.numel():
        return
    error = (got - exact).abs() / row_bound(exact, rounded, dtype or torch.bfloat16)
    assert error.max() <= 1, f"an error of {error.max():.3g} times the bound"


def assert_logs(got: Tensor, exact: Tensor) -> None:
    """lse and max_logits: 1e-5 and 4/65536 of the magnitude."""
    assert got.dtype == torch.float32 and got.shape == exact.shape
    got, finite = got.double(), exact.isfinite()
    assert torch.equal(
        torch.where(finite, 0, got).nan_to_num(1, 2, 3), torch.where(finite, 0, exact).nan_to_num(1, 2, 3)
    )
    error = (got - exact).abs()[finite] / (1e-5 + 4 / 65536 * exact.abs()[finite])
    assert not error.isnan().any()
    assert error.numel() == 0 or error.max() <= 1, f"an error of {error.max():.3g} times the bound"


def assert_outputs(op: str, found: tuple[Tensor, ...], expected: Result) -> None:
    """All that an attention or merging operator returns, against what the function of its name here says."""
    exact, rounded = expected
    if op in ("fused_prefill", "fused_decode", "combine_partials_fused"):
        assert_cast(found[0], found[1], expected)
        assert_logs(found[-1], exact.lse)
        if op == "fused_prefill":
            assert_logs(found[2], exact.max_logits)
        return
    assert_rows(found[0], exact.out, rounded.out, found[0].dtype)
    prefill = op == "sparse_prefill_fwd"
    assert_logs(found[2 if prefill else 1], exact.lse)
    if prefill:
        assert_logs(found[1], exact.max_logits)
    if exact.lse_indexer is not None:
        assert_logs(found[3], exact.lse_indexer)
