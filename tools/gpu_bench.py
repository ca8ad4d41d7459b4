#!/usr/bin/env python3
"""Runs the GPU's benchmark of a CUDA build; with --out the results become DIR/gpu_bench.json."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (FileNotFoundError, subprocess.CalledProcessError):
        return "unknown"


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev gpu-bench", description=__doc__)
    parser.add_argument("match", nargs="?", default="", help="only shapes whose names match this")
    parser.add_argument(
        "--build", type=Path, default=ROOT / "build" / "cuda-release", help="the build's folder"
    )
    parser.add_argument("--out", type=Path, help="folder for gpu_bench.json")
    parser.add_argument("--commit", help="what was built (default: asked of git)")
    parser.add_argument("--kernel", default="", help="kernel to use for all shapes")
    args = parser.parse_args()
    build = args.build.resolve()
    env = dict(os.environ)
    libraries = build / "lib"
    if libraries.is_dir():
        env["LD_LIBRARY_PATH"] = f"{libraries}:{env.get('LD_LIBRARY_PATH', '')}".rstrip(":")
    command = [str(build / "bench" / "tilewise_gpu_bench"), "--commit", args.commit or commit()]
    command += ["--kernel", args.kernel] if args.kernel else []
    command += [args.match] if args.match else []
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        command += ["--json", str(args.out / "gpu_bench.json")]
    return subprocess.run(command, env=env, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
