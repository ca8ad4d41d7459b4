#!/usr/bin/env python3
"""Times operators beside the same computation written in torch, alternating in one process.

The torch side is what a user would write without this library: gather (and decode) the listed rows, matmul,
softmax, matmul, all in bfloat16 with float32 softmax; the fused operators' norm, RoPE and FP8 cast around it.
Both sides use the same threads. Prints JSON: for each case both medians in milliseconds, and the quotient's
median and quartiles over the pairs. Both results are compared first.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import tilewise
import torch
import training_cases
from machine import cpu_flags, describe_machine
from torch import Tensor
from training_cases import Case

D, ROPE, PAGE, GROUPS = 512, 64, 64, 8
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.bfloat16)
# Both values of a byte.
E2M1_PAIRS = torch.stack([E2M1.repeat(16), E2M1.repeat_interleave(16)], -1)
E4M3 = torch.float8_e4m3fn


# ---- attention in torch -------------------------------------------------------------------------------


def attend(q: Tensor, rows: Tensor, valid: Tensor, scale: float | Tensor) -> Tensor:
    """q [n, h, d], rows [n, keys, d], valid [n, keys] -> [n, h, 512]."""
    scores = torch.bmm(q, rows.transpose(1, 2)).float() * scale
    scores = scores.masked_fill(~valid[:, None], -torch.inf)
    return torch.bmm(torch.softmax(scores, -1).bfloat16(), rows[:, :, :D])


def gather(kv: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    valid = (indices >= 0) & (indices < kv.shape[0])
    return kv[torch.where(valid, indices, 0)], valid


def v41_fp8_rows(cache: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of a v41_fp8 cache: 512 e4m3 codes a token, then the page's exponents, one for 32 columns."""
    valid = (indices >= 0) & (indices < cache.shape[0] * PAGE)
    slot = torch.where(valid, indices, 0).long()
    pages = cache.flatten(1)
    codes = pages[:, : PAGE * D].unflatten(1, (PAGE, D))[slot // PAGE, slot % PAGE]
    exponents = pages[:, PAGE * D :].unflatten(1, (PAGE, D // 32))[slot // PAGE, slot % PAGE]
    scales = torch.exp2(exponents.float() - 127).bfloat16()
    values = codes.view(E4M3).bfloat16().unflatten(-1, (-1, 32)) * scales[..., None]
    return values.flatten(-2), valid


def v41_fp4_rows(cache: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of a v41_fp4 cache: 512 e2m1 codes a token, then the page's scales, one e4m3 for 16 columns."""
    valid = (indices >= 0) & (indices < cache.shape[0] * PAGE)
    slot = torch.where(valid, indices, 0).long()
    pages = cache.flatten(1)
    codes = pages[:, : PAGE * D // 2].unflatten(1, (PAGE, D // 2))[slot // PAGE, slot % PAGE]
    scales = pages[:, PAGE * D // 2 :].unflatten(1, (PAGE, D // 16))[slot // PAGE, slot % PAGE]
    values = torch.nn.functional.embedding(codes.int(), E2M1_PAIRS).flatten(-2)
    values = values.unflatten(-1, (-1, 16)) * scales.view(E4M3).bfloat16()[..., None]
    return values.flatten(-2), valid


def decode_rows(main: Tensor, indices: Tensor, extra: Tensor, extra_indices: Tensor) -> tuple[Tensor, Tensor]:
    rows, valid = v41_fp8_rows(main, indices)
    extra_rows, extra_valid = v41_fp4_rows(extra, extra_indices)
    return torch.cat([rows, extra_rows], 1), torch.cat([valid, extra_valid], 1)


# ---- what the fused operators do around it ------------------------------------------------------------


def rotate(x: Tensor, cos_sin: Tensor, back: bool) -> Tensor:
    """Interleaved pairs of the last 64 columns of [n, h, 512] float32."""
    cos, sin = cos_sin[:, None, : ROPE // 2], cos_sin[:, None, ROPE // 2 :]
    sin = -sin if back else sin
    even, odd = x[..., D - ROPE :: 2], x[..., D - ROPE + 1 :: 2]
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
    return torch.cat([x[..., : D - ROPE], turned], -1)


def fused(q: Tensor, cos_sin: Tensor, rows: Tensor, valid: Tensor, scale: float) -> Tensor:
    """q [n, h, 512] in the permuted order -> the FP8 codes of the output in its order."""
    n, h, _ = q.shape
    plain = q.view(n, D // 16, h, 16).transpose(1, 2).reshape(n, h, D)
    wide = plain.float()
    factor = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    out = attend(rotate(wide, cos_sin, back=False).bfloat16(), rows, valid, scale * factor)
    groups = rotate(out.float(), cos_sin, back=True).view(n, h, D // 32, 32)
    exponent = torch.ceil(torch.log2(groups.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448))
    codes = (groups / torch.exp2(exponent)).to(E4M3).view(torch.uint8)
    size = h // GROUPS
    return codes.view(n, GROUPS, size, D // 32, 32).transpose(2, 3).reshape(n, GROUPS, size * D)


# ---- cases --------------------------------------------------------------------------------------------


def bf16(*shape: int) -> Tensor:
    return torch.randn(shape).to(torch.bfloat16)


def lists(*shape: int, below: int) -> Tensor:
    return torch.randint(0, below, shape, dtype=torch.int32)


def sparse_prefill(tokens: int, heads: int, d: int, topk: int, rows: int) -> Case:
    q, kv, indices, scale = bf16(tokens, heads, d), bf16(rows, d), lists(tokens, topk, below=rows), d**-0.5
    return Case(
        f"sparse_prefill_fwd {tokens} tokens, {heads} heads, d {d}, topk {topk}, {rows} rows",
        lambda: tilewise.sparse_prefill_fwd(q, kv[:, None], indices[:, None], scale)[0],
        lambda: attend(q, *gather(kv, indices), scale),
        (8, 5),
    )


def v41_caches(rows: int) -> tuple[Tensor, Tensor]:
    return tilewise.quantize_kv(bf16(rows, D), "v41_fp8", PAGE), tilewise.quantize_kv(
        bf16(rows, D), "v41_fp4", PAGE
    )


def sparse_decode(tokens: int, heads: int, topk: int, extra_topk: int, rows: int) -> Case:
    q, scale = bf16(tokens, heads, D), D**-0.5
    main, extra = v41_caches(rows)
    indices, extra_indices = lists(tokens, topk, below=rows), lists(tokens, extra_topk, below=rows)
    return Case(
        f"sparse_decode {tokens} tokens, {heads} heads, v41_fp8 {topk} + v41_fp4 {extra_topk}, {rows} rows",
        lambda: tilewise.sparse_decode(
            q[:, None],
            main,
            indices[:, None],
            scale,
            extra_cache=extra,
            extra_indices=extra_indices[:, None],
        )[0][:, 0],
        lambda: attend(q, *decode_rows(main, indices, extra, extra_indices), scale),
        (8, 5),
    )


def rope_table() -> Tensor:
    angles = torch.arange(4096)[:, None] * 10000.0 ** (-torch.arange(ROPE // 2) / (ROPE // 2))
    return torch.cat([angles.cos(), angles.sin()], 1)


def fused_prefill(tokens: int, heads: int, topk: int, rows: int) -> Case:
    q, kv, indices, scale = bf16(tokens, heads, D), bf16(rows, D), lists(tokens, topk, below=rows), D**-0.5
    table, places = rope_table(), torch.randint(0, 4096, (tokens,), dtype=torch.int32)
    return Case(
        f"fused_prefill {tokens} tokens, {heads} heads, topk {topk}, {rows} rows",
        lambda: tilewise.fused_prefill(q, kv[:, None], indices[:, None], places, table, scale, GROUPS, 1e-6)[
            0
        ].view(torch.uint8),
        lambda: fused(q, table[places], *gather(kv, indices), scale),
        (8, 5),
    )


def fused_decode(tokens: int, heads: int, topk: int, extra_topk: int, rows: int) -> Case:
    q, scale = bf16(tokens, heads, D), D**-0.5
    main, extra = v41_caches(rows)
    indices, extra_indices = lists(tokens, topk, below=rows), lists(tokens, extra_topk, below=rows)
    table, places = rope_table(), torch.randint(0, 4096, (tokens,), dtype=torch.int32)
    return Case(
        f"fused_decode {tokens} tokens, {heads} heads, v41_fp8 {topk} + v41_fp4 {extra_topk}, {rows} rows",
        lambda: tilewise.fused_decode(
            q,
            main,
            indices,
            places,
            table,
            scale,
            GROUPS,
            1e-6,
            extra_cache=extra,
            extra_indices=extra_indices,
        )[0].view(torch.uint8),
        lambda: fused(q, table[places], *decode_rows(main, indices, extra, extra_indices), scale),
        (8, 5),
    )


def dense_decode(batch: int, heads: int, keys: int) -> Case:
    d, scale = 576, 576**-0.5
    blocks = keys // PAGE
    q, cache = bf16(batch, 1, heads, d), bf16(batch * blocks, PAGE, 1, d)
    table = torch.randperm(batch * blocks, dtype=torch.int32).view(batch, blocks)
    lengths = torch.full((batch,), keys, dtype=torch.int32)

    def in_torch() -> Tensor:
        rows = cache[table].view(batch, keys, d)
        return attend(q[:, 0], rows, torch.arange(keys) < lengths[:, None], scale)

    return Case(
        f"dense_decode {batch} requests, {heads} heads, {keys} keys",
        lambda: tilewise.dense_decode(q, cache, table, lengths, scale)[0][:, 0],
        in_torch,
        (3, 2),
    )


def cases() -> list[Callable[[], Case]]:
    return [
        lambda: sparse_prefill(256, 64, 512, 512, 4096),
        lambda: sparse_prefill(64, 128, 576, 2048, 32768),
        lambda: sparse_decode(64, 64, 128, 512, 16384),
        lambda: sparse_decode(64, 16, 128, 512, 16384),
        lambda: fused_prefill(256, 64, 512, 4096),
        lambda: fused_decode(64, 64, 128, 512, 16384),
        lambda: dense_decode(8, 16, 8192),
        lambda: dense_decode(1, 128, 16384),
    ]


# ---- measuring ----------------------------------------------------------------------------------------


def compare_results(case: Case) -> None:
    ours, theirs = case.ours(), case.torch()
    if ours.dtype == torch.uint8:  # codes: most are the same, the others neighbours
        off = (ours.view(E4M3).float() - theirs.view(E4M3).float()).abs().mean()
        limit = 0.1 * theirs.view(E4M3).float().abs().mean()
    else:
        off, limit = (ours.float() - theirs.float()).abs().max(), 0.05 * theirs.float().abs().max()
    if not off <= limit:
        raise SystemExit(f"against_torch: {case.name}: the results differ by {off}, at most {limit} expected")


def bf16_instructions(no_amx: bool) -> str:
    """What the processor has for products of bfloat16, as far as torch may use it."""
    flags = cpu_flags()
    if "amx_bf16" in flags and not no_amx:
        return "AMX"
    return "AVX-512 BF16" if "avx512_bf16" in flags else "no bfloat16 instructions"


def milliseconds(run: Callable[[], Tensor]) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def measure(case: Case, pairs: int) -> dict[str, object]:
    if case.same:
        compare_results(case)
    ours, theirs = [], []
    for _ in range(pairs):
        ours.append(milliseconds(case.ours))
        theirs.append(milliseconds(case.torch))
    low, median, high = statistics.quantiles([t / o for o, t in zip(ours, theirs, strict=True)], n=4)
    return {
        "case": case.name,
        "tilewise_ms": round(statistics.median(ours), 3),
        "torch_ms": round(statistics.median(theirs), 3),
        "times_faster": round(median, 2),
        "quartiles": [round(low, 2), round(high, 2)],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--filter", default="", help="cases whose name contains this")
    parser.add_argument("--training", action="store_true", help="the training operators instead of serving's")
    parser.add_argument("--no-amx", action="store_true", help="neither side uses AMX")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 where a case is slower than its goal"
    )
    options = parser.parse_args()
    if options.no_amx and os.environ.get("ONEDNN_MAX_CPU_ISA") != "AVX512_CORE_BF16":
        # oneDNN reads it when it is first used, the library when it plans.
        environment = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
        # Without AMX the library's own choice is the best; processors with AMX add bf16 products slowly.
        if "amx_bf16" in cpu_flags():
            environment["TILEWISE_KERNEL"] = "cpu_avx512"
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **environment})

    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    results, missed = [], []
    with torch.no_grad():
        for make in training_cases.cases() if options.training else cases():
            case = make()
            if options.filter not in case.name:
                continue
            result = measure(case, options.pairs)
            goal = case.goal[1 if options.no_amx else 0]
            result["goal"] = goal
            results.append(result)
            if goal is not None and result["times_faster"] < goal:
                missed.append(case.name)
            print(f"{result['times_faster']:6.2f}x (goal {goal}) {case.name}", file=sys.stderr, flush=True)
    if not results:
        parser.error(f"--filter must be part of a case's name, got {options.filter!r}")
    report = {
        **describe_machine(),
        "threads": options.threads,
        "instructions": bf16_instructions(options.no_amx),
        "pairs": options.pairs,
        "results": results,
    }
    print(json.dumps(report, indent=2))
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
