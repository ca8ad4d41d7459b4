#!/usr/bin/env python3
"""Draws bench/scaling.py's report: plot_scaling.py REPORT.json PLOT.svg"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "tilewise"
from matplotlib import pyplot  # noqa: E402

LABELS = {
    "rows": "rows in the cache",
    "topk": "entries of a list",
    "heads": "query heads",
    "threads": "threads",
}


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    report = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    figure, all_axes = pyplot.subplots(1, len(LABELS), figsize=(13, 3.2), constrained_layout=True)
    for axes, (sweep, label) in zip(all_axes, LABELS.items(), strict=True):
        for name, sweeps in report["operators"].items():
            points = sweeps[sweep]
            axes.plot([p[sweep] for p in points], [p["us"] for p in points], marker="o", label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
    all_axes[0].set_ylabel("microseconds a token")
    all_axes[0].legend(fontsize="small")
    figure.suptitle(f"{report['cpu']}, {report['cpus']} CPUs, tilewise {report['commit']}", fontsize="medium")
    figure.savefig(sys.argv[2], metadata={"Date": None})
    return 0


if __name__ == "__main__":
    sys.exit(main())
