#!/usr/bin/env python3
"""Runs the test executables of a CUDA build on this machine's GPU, in many processes, and sums up.

A test that prints nothing for too long, or ends its process, is reported by its name; the tests behind it go
on in a new process. Exits 1 when a test failed or when a suite ran none.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import fnmatch
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUITES = ("oracle", "invariants", "gpu")
SANITIZED_SUITES = ("oracle",)
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")

# Tests that say nothing about a GPU, and why.
LEFT_OUT = {
    "StrayAccessDeathTest.*": "is about pages that a CPU may not touch; the GPU has canaries and memcheck",
    "SharedTile.ManyThreadsForLittleWork": "is about threads of the CPU",
    "ConcurrentCalls*": "is about threads of the CPU",
    "*/ConcurrentCalls*": "is about threads of the CPU",
    "SparseBackward*": "the training operators run on the CPU alone",
    "*/SparseBackward*": "the training operators run on the CPU alone",
}
# Needs two GPUs; counted as left out where there is one.
NEEDS_TWO_GPUS = ("*OtherDevice*",)
# Tens of gigabytes of device memory each: one process runs all of them.
ONE_AT_A_TIME = ("*/Width.*", "*/WidePages.*")

STARTED = re.compile(r"^\[ RUN      \] (\S+)")
ENDED = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] ([^\s,]+).*?(?:\((\d+) ms\))?$")
# After one of these every later call of the process fails.
STICKY = re.compile(
    r"cudaError(IllegalAddress|LaunchFailure|LaunchTimeout|MisalignedAddress|IllegalInstruction"
    r"|InvalidAddressSpace|InvalidPc|HardwareStackError|Assert|ECCUncorrectable|Unknown)\b"
)
SANITIZER_FINDING = re.compile(
    r"^========= (Invalid|Uninitialized|Error|Warning|Race|Potential|Barrier|Program hit|Host API|Misaligned)"
)
TEXT_AT_MOST = 3000


@dataclass
class Result:
    suite: str
    name: str
    ok: bool
    seconds: float
    text: str = ""


@dataclass
class Chunk:
    """Tests of one executable that a process runs one after another."""

    suite: str
    executable: Path
    tests: list[str]
    prefix: list[str] = field(default_factory=list)  # a sanitizer's command line
    silence: float = 120.0
    limit: float = 420.0  # of one process
    deadline: float = 0.0  # of all of them, by time.monotonic()


def matches(name: str, patterns: Iterator[str] | tuple[str, ...] | dict[str, str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def gpu_count() -> int:
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())


def environment(build: Path, test_set: str, sanitized: bool) -> dict[str, str]:
    env = dict(os.environ)
    env.update(
        TILEWISE_TEST_DEVICE="cuda",
        TILEWISE_TEST_SET=test_set,
        OMP_NUM_THREADS="1",
        OMP_WAIT_POLICY="passive",
    )
    env.pop("TILEWISE_KERNEL", None)
    if sanitized:
        env["TILEWISE_GPU_BARE"] = "1"
    libraries = build / "lib"
    if libraries.is_dir():
        env["LD_LIBRARY_PATH"] = f"{libraries}:{env.get('LD_LIBRARY_PATH', '')}".rstrip(":")
    return env


def list_tests(executable: Path, pattern: str, env: dict[str, str]) -> list[str]:
    command = [str(executable), "--gtest_list_tests", f"--gtest_filter={pattern}"]
    if not executable.exists():
        sys.exit(f"gpu-test: there is no {executable}")
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"gpu-test: {executable} does not list its tests:\n{done.stdout}{done.stderr}")
    names: list[str] = []
    group = ""
    for line in done.stdout.splitlines():
        word = line.split("#")[0].strip()
        if line.startswith("  ") and word:
            names.append(group + word)
        elif word.endswith("."):
            group = word
    return names


class Process:
    """A running test process, seen as lines of its output."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.lines: queue.Queue[str | None] = queue.Queue()
        self.process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def status(self) -> str:
        code = self.process.wait()
        return f"signal {-code}" if code < 0 else f"exit status {code}"


def shortened(lines: list[str]) -> str:
    text = "\n".join(lines)
    return text if len(text) <= TEXT_AT_MOST else text[:TEXT_AT_MOST] + " ..."


def run_process(chunk: Chunk, tests: list[str], env: dict[str, str]) -> list[Result]:
    """Results of the tests that one process began: all of `tests`, unless the last one ended it."""
    command = [
        *chunk.prefix,
        str(chunk.executable),
        f"--gtest_filter={':'.join(tests)}",
        "--gtest_color=no",
        "--gtest_print_time=1",
    ]
    process = Process(command, env)
    end = min(time.monotonic() + chunk.limit, chunk.deadline)
    results: list[Result] = []
    current, began, text, found = "", 0.0, [], False

    def finish(ok: bool, seconds: float | None = None) -> None:
        nonlocal current
        taken = time.monotonic() - began if seconds is None else seconds
        results.append(Result(chunk.suite, current, ok, round(taken, 3), "" if ok else shortened(text)))
        current = ""

    try:
        while True:
            wait = min(chunk.silence, end - time.monotonic())
            try:
                line = process.lines.get(timeout=max(wait, 0.01))
            except queue.Empty:
                late = time.monotonic() >= end
                text.append("killed: time was up" if late else f"killed: no output for {wait:.0f} s")
                current = current or "(between tests)"
                finish(False)
                return results
            if line is None:
                break
            if started := STARTED.match(line):
                current, began, text, found = started[1], time.monotonic(), [], False
            elif current and (ended := ENDED.match(line)) and ended[2] == current:
                ok = ended[1] == "OK" and not found
                if ended[1] == "SKIPPED":
                    text.append("skipped itself")
                finish(ok, int(ended[3]) / 1000 if ended[3] else None)
                if not ok and STICKY.search("\n".join(text)):
                    return results
            else:
                text.append(line)
                found = found or SANITIZER_FINDING.match(line) is not None
    finally:
        process.kill()
    status = process.status()
    if current:
        text.append(f"the process ended: {status}")
        finish(False)
    elif status != "exit status 0" and all(result.ok for result in results):
        current = results[-1].name if results else tests[0]
        text = [*text[-30:], f"the process ended: {status}"]
        finish(False)
    return results


def run_chunk(chunk: Chunk, env: dict[str, str]) -> list[Result]:
    results: list[Result] = []
    left = chunk.tests
    while left:
        if time.monotonic() >= chunk.deadline:
            results += [Result(chunk.suite, name, False, 0.0, "no time left") for name in left]
            break
        new = run_process(chunk, left, env)
        results += new
        begun = {result.name for result in new}
        still = [name for name in left if name not in begun]
        if len(still) == len(left):  # not even one began
            results += [Result(chunk.suite, name, False, 0.0, "did not run") for name in still]
            break
        left = still
    return results


def chunks_of(suite: str, executable: Path, tests: list[str], pieces: int) -> list[Chunk]:
    """The long ones first."""
    alone = [name for name in tests if matches(name, ONE_AT_A_TIME)]
    others = [name for name in tests if not matches(name, ONE_AT_A_TIME)]
    chunks = [Chunk(suite, executable, alone)] if alone else []
    return chunks + [Chunk(suite, executable, others[i::pieces]) for i in range(min(pieces, len(others)))]


def plan_work(args: argparse.Namespace, env: dict[str, str]) -> tuple[list[Chunk], dict[str, str]]:
    left_out = dict(LEFT_OUT)
    if gpu_count() < 2:
        left_out |= dict.fromkeys(NEEDS_TWO_GPUS, "needs two GPUs")
    suites = args.suites or (SANITIZED_SUITES if args.sanitizer else SUITES)
    chunks: list[Chunk] = []
    dropped: dict[str, str] = {}
    for suite in suites:
        executable = args.build / "tests" / f"tilewise_{suite}_tests"
        tests = list_tests(executable, args.filter, env)
        for name in tests:
            for pattern, reason in left_out.items():
                if fnmatch.fnmatchcase(name, pattern):
                    dropped[f"{suite}.{name}"] = reason
        tests = [name for name in tests if not matches(name, left_out)]
        # Processes cost a start each, so there are few more of them than can run at a time.
        pieces = args.jobs if args.sanitizer else 3 * args.jobs
        whole = chunks_of(suite, executable, tests, pieces)
        if not args.sanitizer:
            chunks += whole
            continue
        for tool in args.tools:
            program = shutil.which("compute-sanitizer", path=f"{env.get('PATH', '')}:/usr/local/cuda/bin")
            if program is None:
                sys.exit("gpu-test: compute-sanitizer was not found in PATH or /usr/local/cuda/bin")
            prefix = [program, "--tool", tool, "--error-exitcode", "99", "--print-limit", "20"]
            for chunk in whole:
                chunks.append(Chunk(f"{suite}/{tool}", executable, chunk.tests, prefix, 300.0, 540.0))
    return chunks, dropped


def run_all(chunks: list[Chunk], env: dict[str, str], jobs: int, seconds: float) -> list[Result]:
    results: list[Result] = []
    end = time.monotonic() + seconds
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:

        def run(chunk: Chunk) -> list[Result]:
            chunk.deadline = end
            return run_chunk(chunk, env)

        for done in concurrent.futures.as_completed([pool.submit(run, chunk) for chunk in chunks]):
            for result in done.result():
                results.append(result)
                if not result.ok:
                    print(f"FAILED {result.suite}: {result.name}\n{result.text}\n", flush=True)
    return results


def summary_of(results: list[Result]) -> list[dict]:
    suites = []
    for suite in sorted({result.suite for result in results}):
        mine = [result for result in results if result.suite == suite]
        failed = [
            {"name": result.name, "seconds": result.seconds, "text": result.text}
            for result in sorted(mine, key=lambda result: result.name)
            if not result.ok
        ]
        slowest = sorted(mine, key=lambda result: -result.seconds)[:5]
        suites.append(
            {
                "suite": suite,
                "passed": sum(result.ok for result in mine),
                "failed": failed,
                "seconds": round(sum(result.seconds for result in mine), 1),
                "slowest": [{"name": result.name, "seconds": result.seconds} for result in slowest],
            }
        )
    return suites


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev gpu-test", description=__doc__)
    parser.add_argument(
        "--build", type=Path, default=ROOT / "build" / "cuda-release", help="the build's folder"
    )
    parser.add_argument("--out", type=Path, help="folder for gpu_test.json (gpu_sanitizer.json)")
    parser.add_argument(
        "--sanitizer", action="store_true", help="the smoke set under compute-sanitizer's tools"
    )
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=TOOLS, help="of --sanitizer")
    parser.add_argument("--suites", nargs="+", choices=SUITES, help="only these")
    parser.add_argument("--filter", default="*", help="only tests that match, as --gtest_filter takes it")
    parser.add_argument("--jobs", type=int, default=min(16, os.cpu_count() or 1), help="processes at a time")
    parser.add_argument("--seconds", type=float, default=460, help="after which no test starts or goes on")
    args = parser.parse_args()
    args.build = args.build.resolve()
    return args


def main() -> int:
    args = arguments()
    start = time.monotonic()
    test_set = "smoke" if args.sanitizer else os.environ.get("TILEWISE_TEST_SET", "ci")
    env = environment(args.build, test_set, args.sanitizer)
    chunks, dropped = plan_work(args, env)
    results = run_all(chunks, env, args.jobs, args.seconds)
    suites = summary_of(results)
    ok = bool(results) and all(result.ok for result in results)
    for suite in suites:
        ok = ok and suite["passed"] > 0
        counts = f"{suite['passed']} passed, {len(suite['failed'])} failed"
        print(f"{suite['suite']}: {counts}, {suite['seconds']} s in all")
    seconds = round(time.monotonic() - start, 1)
    verdict = "all passed" if ok else "NOT all passed"
    print(f"{len(dropped)} left out; test set {test_set}; {seconds} s; {verdict}")
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        path = args.out / ("gpu_sanitizer.json" if args.sanitizer else "gpu_test.json")
        report = {"ok": ok, "test_set": test_set, "seconds": seconds, "suites": suites, "left_out": dropped}
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
