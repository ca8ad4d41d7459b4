#!/usr/bin/env python3
"""How the time of sparse attention moves with the cache's size, the lists' length, heads and threads.

One of them moves at a time, the others stay at 16,384 rows, 512 entries, 64 heads, one thread. Prints JSON:
for each point the median time of a token in microseconds and its quartiles; then the same of one request of
131,072 keys, whose single token all threads share.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import tilewise
import torch
from machine import describe_machine
from torch import Tensor

D, PAGE, TOKENS = 512, 64, 32
LONG = 131072  # keys of the one request


class Point(NamedTuple):
    rows: int = 16384
    topk: int = 512
    heads: int = 64
    threads: int = 1


SWEEPS: dict[str, list[Point]] = {
    "rows": [Point(rows=2**n) for n in range(10, 19)],
    "topk": [Point(topk=topk) for topk in (64, 128, 256, 512, 1024, 2048)],
    "heads": [Point(heads=heads) for heads in (1, 2, 4, 8, 16, 32, 64, 128)],
    "threads": [Point(threads=n) for n in range(1, len(os.sched_getaffinity(0)) + 1)],
}


def sparse_prefill_fwd(point: Point) -> Callable[[], object]:
    q = torch.randn(TOKENS, point.heads, D).to(torch.bfloat16)
    kv = torch.randn(point.rows, 1, D).to(torch.bfloat16)
    indices = torch.randint(0, point.rows, (TOKENS, 1, point.topk), dtype=torch.int32)
    return lambda: tilewise.sparse_prefill_fwd(q, kv, indices, D**-0.5)


def v41_fp8_cache(rows: int) -> Tensor:
    parts = torch.randn(min(rows, 4096), D).to(torch.bfloat16)
    return tilewise.quantize_kv(parts.repeat(rows // len(parts), 1), "v41_fp8", PAGE)


def sparse_decode(point: Point, tokens: int = TOKENS) -> Callable[[], object]:
    q = torch.randn(tokens, 1, point.heads, D).to(torch.bfloat16)
    cache = v41_fp8_cache(point.rows)
    indices = torch.randint(0, point.rows, (tokens, 1, point.topk), dtype=torch.int32)
    return lambda: tilewise.sparse_decode(q, cache, indices, D**-0.5)


def dense_decode(point: Point) -> Callable[[], object]:
    q = torch.randn(1, 1, point.heads, D).to(torch.bfloat16)
    cache = torch.randn(point.rows // PAGE, PAGE, 1, D).to(torch.bfloat16)
    table = torch.randperm(len(cache)).to(torch.int32).view(1, -1)
    lengths = torch.tensor([point.rows], dtype=torch.int32)
    return lambda: tilewise.dense_decode(q, cache, table, lengths, D**-0.5)


OPERATORS = {"sparse_prefill_fwd, bf16": sparse_prefill_fwd, "sparse_decode, v41_fp8": sparse_decode}
# With the point that all numbers of threads have in common.
ONE_REQUEST = {
    "dense_decode, bf16": (dense_decode, Point(rows=LONG, topk=LONG, heads=16)),
    "sparse_decode, v41_fp8": (functools.partial(sparse_decode, tokens=1), Point(rows=LONG, topk=LONG)),
}


def microseconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e6


def measure(
    runs: list[Callable[[], object]], points: list[Point], rounds: int, tokens: int = TOKENS
) -> list[dict[str, object]]:
    """All points in every round, so that a busy machine disturbs them alike."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds + 1):  # the first one warms up
        for run, point, series in zip(runs, points, times, strict=True):
            torch.set_num_threads(point.threads)
            series.append(microseconds(run) / tokens)
    results = []
    for point, series in zip(points, times, strict=True):
        low, median, high = statistics.quantiles(series[1:], n=4)
        results.append(
            {**point._asdict(), "us": round(median, 2), "quartiles": [round(low, 2), round(high, 2)]}
        )
    return results


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.manual_seed(0)
    operators: dict[str, dict[str, object]] = {}
    one_request: dict[str, object] = {}
    with torch.inference_mode():
        for name, make in OPERATORS.items():
            operators[name] = {}
            for sweep, points in SWEEPS.items():
                operators[name][sweep] = measure([make(point) for point in points], points, options.rounds)
                print(f"{name}: {sweep}", file=sys.stderr, flush=True)
        for name, (make, point) in ONE_REQUEST.items():
            points = [point._replace(threads=p.threads) for p in SWEEPS["threads"]]
            one_request[name] = measure([make(point)] * len(points), points, options.rounds, tokens=1)
            print(f"one request: {name}", file=sys.stderr, flush=True)
    report = {"tokens": TOKENS, "operators": operators, "one_request": one_request}
    print(json.dumps({**describe_machine(), **report}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
