#!/usr/bin/env python3
"""Times operators on a GPU beside what torch offers, alternating in one process.

The fused operators beside their five steps one after another: RMS norm, RoPE, our own attention, RoPE back
and the FP8 cast, the others in plain torch operators, eager and compiled. dense_decode beside torch's
scaled_dot_product_attention and FlexAttention; the sparse operators beside gather, matmul, softmax, matmul.

Prints JSON: for each case the contestants' median microseconds with quartiles over the rounds and, of all but
the first, how many times slower they are (the rounds' quotients). Decoding is timed in a CUDA graph of ten
calls. A contestant that torch refuses has the reason instead. Results are compared first (`off`): the exit
status is 1 where one is wrong, or where an operator of this library fails.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import tilewise
import torch
from against_torch import PAGE, ROPE, D, attend, bf16, gather, lists, rope_table, v41_fp8_rows
from machine import describe_machine, device_name
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import rms_norm, scaled_dot_product_attention

EPS = 1e-6
CAST_GROUP = 32
HEADS_OF_GROUP = 8
GRAPH_CALLS = 10
LIMIT = 0.05
FEWEST_ROUNDS = 3
BACKENDS = {
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}

Run = Callable[[], object]


class Contestant(NamedTuple):
    """`prepare` gives what is timed; `compiles`: it takes seconds, and is left out when time is short."""

    name: str
    prepare: Callable[[], Run]
    compiles: bool = False


class Case(NamedTuple):
    """Ours comes first. `off(ours, other)` is how far two results are from each other, at most LIMIT."""

    name: str
    graph: bool
    contestants: list[Contestant]
    off: Callable[[object, object], float]


class Budget:
    """When to stop."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    def left(self) -> float:
        return self.end - time.monotonic()


# ---- the five steps -----------------------------------------------------------------------------------


def turned(x: Tensor, cos_sin: Tensor, back: bool) -> Tensor:
    """[n, h, 512] with its last 64 columns turned, in place where it runs as it is written."""
    cos, sin = cos_sin[:, None, : ROPE // 2], cos_sin[:, None, ROPE // 2 :]
    sin = -sin if back else sin
    even, odd = x[..., D - ROPE :: 2].float(), x[..., D - ROPE + 1 :: 2].float()
    last = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2).to(x.dtype)
    if torch.compiler.is_compiling():
        return torch.cat([x[..., : D - ROPE], last], -1)
    x[..., D - ROPE :] = last
    return x


def before(q: Tensor, cos_sin: Tensor, places: Tensor) -> Tensor:
    return turned(rms_norm(q, (D,), eps=EPS), cos_sin[places], back=False)


def behind(out: Tensor, cos_sin: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [n, h, 512] and exponent bytes [n, h, 16]."""
    groups = turned(out, cos_sin[places], back=True).unflatten(-1, (-1, CAST_GROUP))
    amax = groups.abs().amax(-1, keepdim=True).float().clamp(min=1e-4)
    exponent = torch.ceil(torch.log2(amax / 448))
    codes = (groups * torch.exp2(-exponent).to(groups.dtype)).to(torch.float8_e4m3fn)
    return codes.flatten(-2), (exponent + 127).to(torch.uint8)[..., 0]


def permuted(q: Tensor) -> Tensor:
    """In the order that the fused operators read."""
    n, h, _ = q.shape
    return q.view(n, h, D // 16, 16).transpose(1, 2).reshape(n, h, D)


def plain_codes(out_fp8: Tensor, out_sf: Tensor) -> tuple[Tensor, Tensor]:
    """The fused operators' codes and exponents as `behind` orders them."""
    n, groups, width = out_fp8.shape
    size = width // D
    order = (n, groups, D // CAST_GROUP, size)
    codes = out_fp8.view(*order, CAST_GROUP).transpose(2, 3)
    exponents = out_sf.contiguous().view(torch.uint8).view(order).transpose(2, 3)
    return codes.reshape(n, groups * size, D), exponents.reshape(n, groups * size, D // CAST_GROUP)


def cast_values(codes: Tensor, exponents: Tensor) -> Tensor:
    scales = torch.exp2(exponents.float() - 127)
    return codes.float().unflatten(-1, (-1, CAST_GROUP)) * scales[..., None]


def off_codes(ours: object, other: object) -> float:
    """The mean difference over the mean magnitude. Most codes are the same, the others neighbours."""
    mine, theirs = cast_values(*plain_codes(*ours[:2])), cast_values(*other)
    return float((mine - theirs).abs().mean() / theirs.abs().mean())


class Steps(NamedTuple):
    """What the operator's call and the steps share. attention: [n, h, 512] bfloat16 -> the same."""

    q: Tensor
    cos_sin: Tensor
    places: Tensor
    attention: Callable[[Tensor], Tensor]

    def eager(self) -> Run:
        return lambda: behind(
            self.attention(before(self.q, self.cos_sin, self.places)), self.cos_sin, self.places
        )

    def compiled(self) -> Run:
        first, last = torch.compile(before, dynamic=False), torch.compile(behind, dynamic=False)
        return lambda: last(
            self.attention(first(self.q, self.cos_sin, self.places)), self.cos_sin, self.places
        )

    def contestants(self, fused: Run) -> list[Contestant]:
        return [
            Contestant("fused", lambda: fused),
            Contestant("five steps", self.eager),
            Contestant("five steps, compiled", self.compiled, compiles=True),
        ]


def fused_prefill(tokens: int, heads: int, topk: int, rows: int) -> Case:
    q, kv, indices, scale = (
        bf16(tokens, heads, D),
        bf16(rows, 1, D),
        lists(tokens, 1, topk, below=rows),
        D**-0.5,
    )
    table, places = rope_table(), torch.randint(0, 4096, (tokens,), dtype=torch.int32)
    fused_q, groups = permuted(q), heads // HEADS_OF_GROUP
    steps = Steps(q, table, places, lambda x: tilewise.sparse_prefill_fwd(x, kv, indices, scale)[0])
    return Case(
        f"fused_prefill {tokens} tokens, {heads} heads, topk {topk}, {rows} rows",
        False,
        steps.contestants(
            lambda: tilewise.fused_prefill(fused_q, kv, indices, places, table, scale, groups, EPS)
        ),
        off_codes,
    )


def fused_decode(
    tokens: int, heads: int, records: tuple[str, str], topk: tuple[int, int], rows: tuple[int, int]
) -> Case:
    q, scale = bf16(tokens, heads, D), D**-0.5
    main, extra = (
        tilewise.quantize_kv(bf16(n, D), name, PAGE) for n, name in zip(rows, records, strict=True)
    )
    indices, more = (lists(tokens, k, below=n) for k, n in zip(topk, rows, strict=True))
    table, places = rope_table(), torch.randint(0, 4096, (tokens,), dtype=torch.int32)
    fused_q, groups = permuted(q), heads // HEADS_OF_GROUP
    steps = Steps(
        q,
        table,
        places,
        lambda x: tilewise.sparse_decode(
            x[:, None], main, indices[:, None], scale, extra_cache=extra, extra_indices=more[:, None]
        )[0][:, 0],
    )
    return Case(
        f"fused_decode {tokens} tokens, {heads} heads, {records[0]} {topk[0]} + {records[1]} {topk[1]}",
        True,
        steps.contestants(
            lambda: tilewise.fused_decode(
                fused_q,
                main,
                indices,
                places,
                table,
                scale,
                groups,
                EPS,
                extra_cache=extra,
                extra_indices=more,
            )
        ),
        off_codes,
    )


# ---- what torch offers in an operator's place ---------------------------------------------------------


def off_values(ours: object, other: object) -> float:
    """The largest difference over the largest magnitude."""
    return float((ours.float() - other.float()).abs().max() / other.float().abs().max())


def sdpa(q: Tensor, k: Tensor, v: Tensor, scale: float, backend: SDPBackend) -> Run:
    def run() -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, scale=scale)

    return run


def flex(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Run:
    from torch.nn.attention.flex_attention import flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(q, k, v, scale=scale, enable_gqa=True)


def dense_decode(batch: int, heads: int, keys: int, with_flex: bool) -> Case:
    """The cache's rows lie in order. For torch, K and V are each head's, or the heads are one head's rows."""
    d, scale, blocks = 576, 576**-0.5, keys // PAGE
    q, cache = bf16(batch, 1, heads, d), bf16(batch * blocks, PAGE, 1, d)
    table = torch.arange(batch * blocks, dtype=torch.int32).view(batch, blocks)
    lengths = torch.full((batch,), keys, dtype=torch.int32)
    k = cache.view(batch, 1, keys, d)
    v = k[..., :D]
    of_head = q.transpose(1, 2)
    k_of_head, v_of_head = (x.expand(-1, heads, -1, -1) for x in (k, v))
    contestants = [
        Contestant(
            "dense_decode", lambda: lambda: tilewise.dense_decode(q, cache, table, lengths, scale)[0][:, 0]
        )
    ]

    def add(name: str, prepare: Callable[[], Run], compiles: bool = False) -> None:
        def in_our_shape() -> Run:
            run = prepare()
            return lambda: run().reshape(batch, heads, D)

        contestants.append(Contestant(name, in_our_shape, compiles))

    for name, backend in BACKENDS.items():
        add(f"{name}, K and V of each head", lambda b=backend: sdpa(of_head, k_of_head, v_of_head, scale, b))
        add(f"{name}, heads as rows", lambda b=backend: sdpa(q, k, v, scale, b))
    if with_flex:
        add("FlexAttention", lambda: flex(of_head, k, v, scale), compiles=True)
    return Case(f"dense_decode {batch} requests, {heads} heads, {keys} keys", True, contestants, off_values)


BATCHES = {
    "63 requests of 1,024 keys and one of 60,000": [1024] * 63 + [60_000],
    "64 requests of 1,000 to 16,000 keys": [1000 + 15_000 * i // 63 for i in range(64)],
    "128 requests of 4,096 keys": [4096] * 128,
}


def planned(name: str, lengths: list[int], heads: int) -> Case:
    """dense_decode with a plan beside it without one; every request has blocks of its own."""
    d, scale, batch = 576, 576**-0.5, len(lengths)
    blocks = [-(-length // PAGE) for length in lengths]
    table = torch.zeros(batch, max(blocks), dtype=torch.int32)
    for i, n in enumerate(blocks):
        table[i, :n] = sum(blocks[:i]) + torch.arange(n, dtype=torch.int32)
    q, cache = bf16(batch, 1, heads, d), bf16(sum(blocks), PAGE, 1, d)
    args = (q, cache, table, torch.tensor(lengths, dtype=torch.int32))
    plan = tilewise.dense_decode_plan(*args)
    return Case(
        f"dense_decode {name}, {heads} heads",
        True,
        [
            Contestant("planned", lambda: lambda: tilewise.dense_decode(*args, scale, plan=plan)[0]),
            Contestant("without a plan", lambda: lambda: tilewise.dense_decode(*args, scale)[0]),
            Contestant("planned anew", lambda: lambda: with_new_plan(args, scale)),
        ],
        off_values,
    )


def with_new_plan(args: tuple[Tensor, ...], scale: float) -> Tensor:
    return tilewise.dense_decode(*args, scale, plan=tilewise.dense_decode_plan(*args))[0]


def sparse_prefill(tokens: int, heads: int, d: int, topk: int, rows: int) -> Case:
    q, kv, indices, scale = bf16(tokens, heads, d), bf16(rows, d), lists(tokens, topk, below=rows), d**-0.5
    return Case(
        f"sparse_prefill_fwd {tokens} tokens, {heads} heads, d {d}, topk {topk}, {rows} rows",
        False,
        [
            Contestant(
                "sparse_prefill_fwd",
                lambda: lambda: tilewise.sparse_prefill_fwd(q, kv[:, None], indices[:, None], scale)[0],
            ),
            Contestant("torch", lambda: lambda: attend(q, *gather(kv, indices), scale)),
        ],
        off_values,
    )


def sparse_decode(tokens: int, heads: int, topk: int, rows: int) -> Case:
    q, scale = bf16(tokens, heads, D), D**-0.5
    cache, indices = tilewise.quantize_kv(bf16(rows, D), "v41_fp8", PAGE), lists(tokens, topk, below=rows)
    return Case(
        f"sparse_decode {tokens} tokens, {heads} heads, v41_fp8 {topk}, {rows} rows",
        True,
        [
            Contestant(
                "sparse_decode",
                lambda: lambda: tilewise.sparse_decode(q[:, None], cache, indices[:, None], scale)[0][:, 0],
            ),
            Contestant("torch", lambda: lambda: attend(q, *v41_fp8_rows(cache, indices), scale)),
        ],
        off_values,
    )


# ---- cases --------------------------------------------------------------------------------------------

PAIRS = [("v4_fp8", "v4_fp8"), ("v41_fp8", "v41_fp4")]


def smoke_cases() -> list[Callable[[], Case]]:
    return [
        lambda: fused_prefill(24, 16, 40, 256),
        *[lambda p=pair: fused_decode(5, 16, p, (16, 24), (256, 128)) for pair in PAIRS],
    ]


def cases() -> list[Callable[[], Case]]:
    rows = (1 << 20, 1 << 18)
    return [
        *[
            lambda h=heads, k=topk: fused_prefill(4096, h, k, 32768)
            for heads in (64, 128)
            for topk in (640, 2048)
        ],
        *[
            lambda t=tokens, h=heads, p=pair: fused_decode(t, h, p, (128, 512), rows)
            for tokens, heads in ((1, 64), (32, 64), (128, 64), (128, 128))
            for pair in PAIRS
        ],
        *[
            lambda n=name, k=lengths, h=heads: planned(n, k, h)
            for name, lengths in BATCHES.items()
            for heads in (16, 128)
        ],
        lambda: dense_decode(1, 128, 4096, with_flex=True),
        lambda: dense_decode(1, 128, 65536, with_flex=True),
        lambda: dense_decode(32, 16, 4096, with_flex=False),
        lambda: sparse_prefill(512, 128, 576, 2048, 32768),
        lambda: sparse_prefill(512, 64, 512, 640, 32768),
        lambda: sparse_decode(128, 64, 2048, 1 << 20),
        lambda: sparse_decode(128, 128, 2048, 1 << 20),
    ]


# ---- measuring ----------------------------------------------------------------------------------------


def captured(run: Run) -> Run:
    """A graph of ten calls."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_CALLS):
            run()
    return graph.replay


def one_round(runs: list[Run], cuda: bool) -> list[float]:
    """Microseconds of each."""
    if not cuda:
        stops = [time.perf_counter()]
        for run in runs:
            run()
            stops.append(time.perf_counter())
        return [(b - a) * 1e6 for a, b in pairwise(stops)]
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in runs]
    for run, (start, end) in zip(runs, events, strict=True):
        start.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return [start.elapsed_time(end) * 1e3 for start, end in events]


def spread(name: str, values: list[float], digits: int) -> dict[str, object]:
    low, median, high = (round(x, digits) for x in statistics.quantiles(values, n=4))
    return {name: median, f"{name}_quartiles": [low, high]}


def reason(error: Exception, said: list[warnings.WarningMessage]) -> str:
    """One line; what torch warned of explains what it raised."""
    lines = [
        line.strip() for text in (str(error), *[str(w.message) for w in said]) for line in text.split("\n")
    ]
    text = "; ".join(dict.fromkeys(line for line in lines if line))
    text = re.sub(r" *\(Triggered internally at [^)]*\)\.?", "", text)
    return f"{type(error).__name__}: {text}"[:400]


class Measured:
    """What a case's report says."""

    def __init__(self, case: Case, cuda: bool, budget: Budget) -> None:
        self.case, self.cuda, self.budget = case, cuda, budget
        self.graph = cuda and case.graph
        self.runs: dict[str, Run] = {}
        self.contestants: dict[str, dict[str, object]] = {}
        self.wrong: list[str] = []

    def prepare(self) -> None:
        """Runs each contestant once and compares the results."""
        ours: object = None
        for place, contestant in enumerate(self.case.contestants):
            if contestant.compiles and not self.cuda:
                self.contestants[contestant.name] = {"left_out": "not on the CPU"}
                continue
            if contestant.compiles and self.budget.left() < 0:
                self.contestants[contestant.name] = {"left_out": "no time"}
                continue
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                try:
                    run = contestant.prepare()
                    result = run()
                    off = 0.0 if place == 0 else self.case.off(ours, result)
                    ours = result if place == 0 else ours
                    self.runs[contestant.name] = captured(run) if self.graph else run
                except Exception as error:  # whatever torch refuses with
                    self.contestants[contestant.name] = {"refused": reason(error, said)}
                    if place == 0:
                        self.wrong.append(contestant.name)
                        return
                    continue
            self.contestants[contestant.name] = {"off": round(off, 5)}
            if not off <= LIMIT:
                self.wrong.append(contestant.name)

    def report(self, rounds: int, seconds: float) -> dict[str, object]:
        runs = list(self.runs.values())
        calls = GRAPH_CALLS if self.graph else 1
        one_round(runs, self.cuda)
        end = time.monotonic() + seconds
        times: list[list[float]] = []
        while len(times) < FEWEST_ROUNDS or (len(times) < rounds and time.monotonic() < end):
            times.append([us / calls for us in one_round(runs, self.cuda)])
        for place, name in enumerate(self.runs):
            found = self.contestants[name]
            found |= spread("us", [row[place] for row in times], 2)
            if place > 0:
                found |= spread("times_slower", [row[place] / row[0] for row in times], 3)
        return {
            "case": self.case.name,
            "timed": "graph" if self.graph else "eager",
            "rounds": len(times),
            "contestants": self.contestants,
        }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"), help="cuda or cpu")
    parser.add_argument("--rounds", type=int, default=31, help="medians are over this many, if there is time")
    parser.add_argument("--seconds", type=float, default=100.0, help="after which no rounds are added")
    parser.add_argument("--filter", default="", help="cases whose name contains this")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes of the fused operators")
    parser.add_argument("--json", type=Path, help="where the report goes instead of standard output")
    options = parser.parse_args()
    cuda = options.device.type == "cuda"
    if cuda and not torch.cuda.is_available():
        parser.error("--device cuda: torch sees no GPU here")

    torch.manual_seed(0)
    budget = Budget(options.seconds)
    makers = smoke_cases() if options.smoke else cases()
    results, wrong = [], []
    with torch.no_grad():
        for place, make in enumerate(makers):
            with options.device:
                case = make()
            if options.filter not in case.name:
                continue
            measured = Measured(case, cuda, budget)
            measured.prepare()
            share = max(budget.left(), 0) / (len(makers) - place)
            results.append(measured.report(options.rounds, share))
            wrong += [f"{case.name}: {name}" for name in measured.wrong]
            print(json.dumps(results[-1]), file=sys.stderr, flush=True)
            del case, measured
            if cuda:
                torch.cuda.empty_cache()
    if not results:
        parser.error(f"--filter must be part of a case's name, got {options.filter!r}")
    report = {
        **describe_machine(),
        "device": device_name(options.device),
        "wrong": wrong,
        "results": results,
    }
    text = json.dumps(report, indent=2)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    else:
        print(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
