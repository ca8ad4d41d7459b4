#!/usr/bin/env python3
"""Writes the README's tables of results from the reports under bench/results; --check only compares."""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"


def against_torch(name: str) -> str:
    """Speed beside the same in torch: one row a case, one column a report."""
    reports = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((RESULTS / "cpu").glob(f"{name}*.json"))
    ]
    titles = [f"{r['instructions']}, {threads_text(r['threads'])}" for r in reports]
    lines = [
        f"| times faster | {' | '.join(titles)} |",
        "|---|" + "---|" * len(titles),
    ]
    for i, result in enumerate(reports[0]["results"]):
        cells = []
        for report in reports:
            other = report["results"][i]
            if other["case"] != result["case"]:
                raise SystemExit(f"readme_tables: the reports must have the same cases, got {other['case']}")
            cells.append(f"{other['times_faster']:.1f} ({other['tilewise_ms']:.1f} ms)")
        lines.append(f"| {result['case']} | {' | '.join(cells)} |")
    lines += ["", "Medians of pairs. The machines' speed moves: only the two times of a pair are comparable."]
    lines += [""] + [f"* {title}: {described(report)}" for title, report in zip(titles, reports, strict=True)]
    return "\n".join(lines) + "\n"


def threads_text(n: int) -> str:
    return f"{n} thread{'s' if n > 1 else ''}"


def described(report: dict[str, object]) -> str:
    return (
        f"{report['cpu']} with {report['cpus']} CPUs, torch {report['torch']}, {report['pairs']} pairs, "
        f"{report['commit']}"
    )


def training_sweep() -> str:
    """How the time of masked training grows with the length."""
    report = json.loads((RESULTS / "cpu" / "training_sweep.json").read_text(encoding="utf-8"))
    lines = [
        "| mask | length | attended pairs a head | forward (ms) | ns a pair | backward (ms) | ns a pair |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for mask, rows in report["sweeps"].items():
        for row in rows:
            forward, backward = (
                f"{row[f'{way}_ms']:.1f} | {row[f'{way}_ns_a_pair']:.2f}" for way in ("forward", "backward")
            )
            lines.append(f"| {mask} | {row['length']} | {row['pairs']} | {forward} | {backward} |")
    lines += [
        "",
        f"{report['shape']}; {report['cpu']}, {threads_text(report['threads'])}; {report['commit']}.",
    ]
    return "\n".join(lines) + "\n"


def one_request() -> str:
    """What threads give where they share a single token."""
    report = json.loads((RESULTS / "cpu" / "scaling.json").read_text(encoding="utf-8"))
    # As many threads as powers of two say: the report has all numbers.
    sweeps = {
        name: [point for point in points if point["threads"].bit_count() == 1]
        for name, points in report["one_request"].items()
    }
    first = next(iter(sweeps.values()))
    titles = [f"{threads_text(point['threads'])} (ms)" for point in first]
    lines = [
        f"| one token, {first[0]['rows']:,} keys | {' | '.join(titles)} |",
        "|---|" + "---|" * len(titles),
    ]
    for name, points in sweeps.items():
        times = " | ".join(f"{point['us'] / 1000:.1f}" for point in points)
        lines.append(f"| {name}, {points[0]['heads']} heads | {times} |")
    return "\n".join([*lines, "", f"{report['cpu']}; {report['commit']}."]) + "\n"


def host_overhead() -> str:
    """What a call costs before any work is done, on every machine that was measured."""
    parts = []
    for path in sorted(RESULTS.glob("*/host_overhead*.json")):
        report = json.loads(path.read_text(encoding="utf-8"))
        device = report.get("device", "cpu")
        where = f"{report['cpus']} CPUs" if device == "cpu" else f"tensors on an {device}"
        calls, outside = report["operators"], dict(report["outside_inference_mode"])
        differentiable = outside.pop("sparse_prefill_fwd")
        texts = [most_host_time(calls), most_host_time(outside), f"{differentiable['more_us']:.1f}"]
        parts.append(f"{', '.join(texts)} us, {where}, torch {report['torch']}, {report['commit']}")
    return (
        "In one run each, the call that costs the most host time under inference_mode, the one that does "
        "outside of it, and torch.ops.tilewise.sparse_prefill_fwd outside of it, which goes through torch's "
        f"autograd in Python, take this much longer than a call of an empty operator: {'; '.join(parts)}. "
        "It moves with the host.\n"
    )


def most_host_time(calls: dict[str, dict[str, float]]) -> str:
    name, worst = max(calls.items(), key=lambda item: item[1]["more_us"])
    return f"{worst['more_us']:.1f} ({name})"


def gpu() -> str:
    """Times of the GPU's kernels: eager calls, or a call inside the replay of a CUDA graph."""
    report = json.loads((RESULTS / "h200" / "gpu_bench.json").read_text(encoding="utf-8"))
    lines = [
        "| shape | timed | time (us) | TFLOP/s | TB/s | host time of an eager call (us) |",
        "|---|---|---|---|---|---|",
    ]
    for row in report["rows"]:
        rates = f"{row['tflops']:.0f} | {row['tbps']:.2f}"
        lines.append(
            f"| {row['shape']} | {row['method']} | {row['median_us']:.1f} | {rates} | {row['host_us']:.1f} |"
        )
    lines += ["", f"{report['gpu']}, kernel cuda_portable, medians; {report['commit']}."]
    return "\n".join(lines) + "\n"


def with_table(text: str, name: str, table: str) -> str:
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    head, _, rest = text.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}{table}{end}{tail}"


def main() -> int:
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    wanted = with_table(text, "cpu-results", f"{against_torch('against_torch')}\n{host_overhead()}")
    wanted = with_table(wanted, "training-results", against_torch("training_against_torch"))
    wanted = with_table(wanted, "training-sweep", training_sweep())
    wanted = with_table(wanted, "one-request", one_request())
    wanted = with_table(wanted, "gpu-results", gpu())
    if sys.argv[1:] == ["--check"]:
        if text != wanted:
            print("README.md: the tables of results must be those of bench/readme_tables.py", file=sys.stderr)
            return 1
        return 0
    readme.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
