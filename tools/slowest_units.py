#!/usr/bin/env python3
"""Prints the CUDA translation units that took longest to compile; exits 1 when one is over the limit.

Reads ninja's own log, so units that an earlier run compiled count with the time they took then.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

SHOWN = 3
# A unit may take 60 s of a core; twice that on the clock, where other work shares the cores.
LIMIT = 120


def compile_seconds(log: Path) -> dict[str, float]:
    """Seconds of wall time by unit."""
    seconds = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        fields = line.split("\t")
        if len(fields) == 5 and fields[3].endswith(".cu.o"):
            seconds[fields[3]] = (int(fields[1]) - int(fields[0])) / 1000
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path, help="the build's folder")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds (default: %(default)g)")
    args = parser.parse_args()
    seconds = compile_seconds(args.build / ".ninja_log")
    if not seconds:
        print(f"no CUDA unit was compiled in {args.build}", file=sys.stderr)
        return 1
    slowest = sorted(seconds.items(), key=lambda unit: unit[1], reverse=True)[:SHOWN]
    print(f"{len(seconds)} CUDA units, {sum(seconds.values()):.0f} s in all; the slowest:")
    for unit, taken in slowest:
        print(f"  {taken:6.1f} s  {unit}")
    return 1 if slowest[0][1] > args.limit else 0


if __name__ == "__main__":
    sys.exit(main())
