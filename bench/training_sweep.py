#!/usr/bin/env python3
"""Times dense_prefill with a window and block_sparse_prefill over lengths: linear in attended pairs.

Prints JSON: for each length the attended pairs of a head, the median time of forward and backward in
milliseconds, and nanoseconds a pair and head.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable

import tilewise  # noqa: F401  loads torch.ops.tilewise
import torch
from machine import describe_machine
from torch import Tensor

HEADS, D_QK, D_V, BLOCK, WINDOW = 2, 192, 128, 128, 128
LENGTHS = [1024 << i for i in range(7)]  # to 64K


def normal(*shape: int) -> Tensor:
    return torch.randn(shape).to(torch.bfloat16)


def milliseconds(run: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def window_pairs(length: int) -> int:
    return sum(min(i, WINDOW) + 1 for i in range(length))


def selected_pairs(length: int) -> int:
    """First block and last four, causal."""
    pairs = 0
    for i in range(length):
        own = i // BLOCK
        whole = len({0, *range(max(own - 3, 0), own)} - {own})
        pairs += whole * BLOCK + i % BLOCK + 1
    return pairs


def measure(length: int, selected: bool, rounds: int) -> dict[str, object]:
    ops = torch.ops.tilewise
    q, k, v = normal(length, HEADS, D_QK), normal(length, HEADS, D_QK), normal(length, HEADS, D_V)
    d_out, ends = normal(length, HEADS, D_V), torch.tensor([0, length], dtype=torch.int32)
    sequence = (ends, ends, length, length, D_QK**-0.5)
    if selected:
        block = torch.arange(length // BLOCK)
        q2k = torch.stack([torch.zeros_like(block), *(block - i for i in range(4))], 1).to(torch.int32)
        forward_op, backward_op, lists, options = (
            ops.block_sparse_prefill_fwd,
            ops.block_sparse_prefill_bwd,
            (q2k,),
            {},
        )
    else:
        forward_op, backward_op, lists = ops.dense_prefill_fwd, ops.dense_prefill_bwd, ()
        options = {"causal": True, "window": [WINDOW, 0]}
    out, lse = forward_op(q, k, v, *lists, *sequence, **options)
    pairs = selected_pairs(length) if selected else window_pairs(length)
    row: dict[str, object] = {"length": length, "pairs": pairs}
    for name, run in (
        ("forward", lambda: forward_op(q, k, v, *lists, *sequence, **options)),
        ("backward", lambda: backward_op(d_out, q, k, v, out, lse, *lists, *sequence, **options)),
    ):
        median = milliseconds(run, rounds)
        row[f"{name}_ms"] = round(median, 3)
        row[f"{name}_ns_a_pair"] = round(median * 1e6 / pairs / HEADS, 3)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    sweeps: dict[str, list[dict[str, object]]] = {f"window {WINDOW}": [], "first and last 4 blocks": []}
    for name, rows in sweeps.items():
        for length in LENGTHS:
            rows.append(measure(length, name.startswith("first"), options.rounds))
            print(name, rows[-1], file=sys.stderr, flush=True)
    report = {
        **describe_machine(),
        "threads": options.threads,
        "shape": f"{HEADS} heads, {D_QK}/{D_V}, bfloat16",
        "sweeps": sweeps,
    }
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
