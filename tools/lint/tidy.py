#!/usr/bin/env python3
"""Runs clang-tidy over every translation unit of a build's compile database, one a core at a time."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def openmp_header_folder(build: Path, compiler: str) -> Path:
    """clang-tidy's package has no omp.h: lends it the compiler's, less what Clang does not take."""
    folder = build / "lint-include"
    folder.mkdir(exist_ok=True)
    name = [compiler, "-print-file-name=include/omp.h"]
    header = subprocess.run(name, capture_output=True, text=True, check=True).stdout.strip()
    text = Path(header).read_text(encoding="utf-8").replace("__malloc__ (omp_free)", "__malloc__")
    (folder / "omp.h").write_text(text, encoding="utf-8")
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clang-tidy", required=True, type=Path)
    parser.add_argument("--build", required=True, type=Path, help="build folder with compile_commands.json")
    parser.add_argument("--compiler", default="g++", help="the compiler whose omp.h is used")
    parser.add_argument("paths", nargs="*", help="only files below these paths")
    arguments = parser.parse_args()

    build = arguments.build.resolve()
    database = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    files = sorted({(Path(entry["directory"]) / entry["file"]).resolve() for entry in database})
    chosen = tuple(Path(path).resolve() for path in arguments.paths) or (ROOT,)
    # C++ alone: the naming rules are not C's.
    files = [f for f in files if f.suffix == ".cpp" and any(f.is_relative_to(path) for path in chosen)]
    if not files:
        print("clang-tidy: no translation unit to check", file=sys.stderr)
        return 1

    command = [
        str(arguments.clang_tidy.absolute()),
        "--quiet",
        f"-p={build}",
        f"--extra-arg=-isystem{openmp_header_folder(build, arguments.compiler)}",
        "--extra-arg=-Wno-unknown-warning-option",
        "--extra-arg=-Wno-pedantic",
        # libstdc++ uses what it deprecates; the real compiler knows that.
        "--extra-arg=-Wno-deprecated-declarations",
    ]

    def check(file: Path) -> tuple[Path, float, subprocess.CompletedProcess[str]]:
        start = time.monotonic()
        result = subprocess.run([*command, str(file)], capture_output=True, text=True, check=False)
        return file, time.monotonic() - start, result

    failed = 0
    slowest = (0.0, files[0])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for file, seconds, result in pool.map(check, files):
            slowest = max(slowest, (seconds, file))
            if result.returncode != 0:
                failed += 1
                print(result.stdout or result.stderr)
    print(
        f"clang-tidy: {len(files)} files, {failed} with findings;"
        f" slowest {slowest[1].relative_to(ROOT)}, {slowest[0]:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
