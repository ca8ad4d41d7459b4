#!/usr/bin/env python3
"""What an operator call costs on the host: time per call of tiny shapes minus that of an empty operator.

Calls are made under torch.inference_mode(), as serving engines make them, and once more outside of
it, where torch looks for gradients: torch.ops.tilewise.sparse_prefill_fwd, which has some, then goes
through torch's autograd in Python. Prints JSON: for every operator and overload the median
microseconds per call, the empty operator's, their difference, and the difference's quartiles over
the rounds. Exits with 1 when a median difference is above --limit. On a GPU, calls launch their
work and return; a round begins when the one before has been done.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

import tilewise
import torch
from machine import describe_machine, device_name

ops = torch.ops.tilewise
Call = Callable[[], object]


def bf16(*shape: int) -> torch.Tensor:
    return torch.randn(shape).to(torch.bfloat16)


def i32(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def f32(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


def decode_calls() -> dict[str, Call]:
    q, cache = bf16(1, 1, 1, 512), bf16(1, 1, 1, 512)
    out, lse = bf16(1, 1, 1, 512), f32(1, 1, 1)
    table, length, indices = i32(1, 1), torch.ones(1, dtype=torch.int32), i32(1, 1, 1)
    record = ops.quantize_kv(bf16(1, 512), "v4_fp8", 1)
    dense, sparse = ops.dense_decode, ops.sparse_decode
    return {
        "dense_decode": lambda: dense.default(q, cache, table, length, 0.1),
        "dense_decode.out": lambda: dense.out(q, cache, table, length, 0.1, out=out, lse=lse),
        "sparse_decode": lambda: sparse.default(q, record, indices, 0.1),
        "sparse_decode.out": lambda: sparse.out(q, record, indices, 0.1, out=out, lse=lse),
        "sparse_decode.out, record named": lambda: sparse.out(
            q, record, indices, 0.1, "v4_fp8", out=out, lse=lse
        ),
    }


def prefill_calls() -> dict[str, Call]:
    q, kv, indices = bf16(1, 1, 512), bf16(1, 1, 512), i32(1, 1, 1)
    out, max_logits, lse = bf16(1, 1, 512), f32(1, 1), f32(1, 1)
    prefill = ops.sparse_prefill_fwd
    return {
        "sparse_prefill_fwd": lambda: prefill.default(q, kv, indices, 0.1),
        "sparse_prefill_fwd_no_grad": lambda: ops.sparse_prefill_fwd_no_grad.default(q, kv, indices, 0.1),
        "tilewise.sparse_prefill_fwd": lambda: tilewise.sparse_prefill_fwd(q, kv, indices, 0.1),
        "sparse_prefill_fwd.out": lambda: prefill.out(
            q, kv, indices, 0.1, out=out, max_logits=max_logits, lse=lse
        ),
    }


def fused_calls() -> dict[str, Call]:
    q, kv, indices, places, table = bf16(1, 1, 512), bf16(1, 1, 512), i32(1, 1), i32(1), f32(1, 64)
    record = ops.quantize_kv(bf16(1, 512), "v4_fp8", 1)
    out_fp8, out_sf = torch.zeros(1, 1, 512).to(torch.float8_e4m3fn), i32(1, 1, 4)
    max_logits, lse, o_accum, lse_accum = f32(1, 1), f32(1, 1), f32(1, 1, 1, 512), f32(1, 1, 1)
    lists = indices.view(1, 1, 1)
    prefill, decode, partials = ops.fused_prefill, ops.fused_decode, ops.fused_decode_partials
    return {
        "fused_prefill.out": lambda: prefill.out(
            q,
            kv,
            lists,
            places,
            table,
            0.1,
            1,
            out_fp8=out_fp8,
            out_sf=out_sf,
            max_logits=max_logits,
            lse=lse,
        ),
        "fused_decode": lambda: decode.default(q, record, indices, places, table, 0.1, 1),
        "fused_decode.out": lambda: decode.out(
            q, record, indices, places, table, 0.1, 1, out_fp8=out_fp8, out_sf=out_sf, lse=lse
        ),
        "fused_decode_partials.out": lambda: partials.out(
            q, record, indices, places, table, 0.1, 1, o_accum=o_accum, lse_accum=lse_accum
        ),
    }


def other_calls() -> dict[str, Call]:
    partials, lse_partials, out, lse = f32(1, 1, 1, 512), f32(1, 1, 1), f32(1, 1, 512), f32(1, 1)
    x, slots = bf16(1, 512), i32(1)
    pages = ops.quantize_kv(x, "v4_fp8", 1)
    return {
        "combine_partials.out": lambda: ops.combine_partials.out(partials, lse_partials, out=out, lse=lse),
        "quantize_kv.out": lambda: ops.quantize_kv.out(x, "v4_fp8", 1, pages=pages),
        "dequantize_kv.out": lambda: ops.dequantize_kv.out(pages, "v4_fp8", x=x),
        "append_kv": lambda: ops.append_kv.default(x, pages, slots),
    }


def microseconds(call: Call, loops: int) -> float:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    start = time.perf_counter_ns()
    for _ in range(loops):
        call()
    return (time.perf_counter_ns() - start) / loops / 1000


def measure(
    calls: dict[str, Call], rounds: int, loops: int, device: torch.device
) -> dict[str, dict[str, float]]:
    """Every call in every round, the empty one beside each, so that a busy machine disturbs both alike."""
    x = torch.zeros(1, device=device)
    empty = ops.noop.default
    times: dict[str, list[float]] = {name: [] for name in calls}
    empties: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        microseconds(call, loops)
    for _ in range(rounds):
        for name, call in calls.items():
            empties[name].append(microseconds(lambda: empty(x), loops))
            times[name].append(microseconds(call, loops))
    result = {}
    for name in calls:
        more = [call - empty for call, empty in zip(times[name], empties[name], strict=True)]
        low, median, high = statistics.quantiles(more, n=4)
        result[name] = {
            "call_us": round(statistics.median(times[name]), 2),
            "empty_us": round(statistics.median(empties[name]), 2),
            "more_us": round(median, 2),
            "more_us_quartiles": [round(low, 2), round(high, 2)],
        }
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=51, help="medians are over this many")
    parser.add_argument("--loops", type=int, default=200, help="calls in a round")
    parser.add_argument("--threads", type=int, default=1, help="torch.set_num_threads")
    parser.add_argument("--limit", type=float, default=15.0, help="microseconds above the empty operator")
    parser.add_argument("--filter", default="", help="operators whose name contains this")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="cpu or cuda")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    with options.device:
        calls = {**decode_calls(), **prefill_calls(), **fused_calls(), **other_calls()}
    chosen = {name: call for name, call in calls.items() if options.filter in name}
    if not chosen:
        parser.error(f"--filter must be part of a name among {', '.join(calls)}, got {options.filter!r}")
    results = {}
    for mode, inference in {"operators": True, "outside_inference_mode": False}.items():
        with torch.inference_mode(inference):
            results[mode] = measure(chosen, options.rounds, options.loops, options.device)
    above = {
        mode: [name for name, times in result.items() if times["more_us"] > options.limit]
        for mode, result in results.items()
    }
    report = {
        **describe_machine(),
        "device": device_name(options.device),
        "threads": options.threads,
        "limit_us": options.limit,
        "above_limit": above,
        **results,
    }
    print(json.dumps(report, indent=2))
    return 1 if any(above.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
