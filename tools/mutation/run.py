#!/usr/bin/env python3
"""Plants bugs into a copy of the tree, one at a time, and expects the tests to see every one of them.

Prints the test that caught each bug. Exits 1 when one survives, or when a change no longer fits its file.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = shutil.ignore_patterns("build", ".git", ".venv", "__pycache__")
SECONDS_AT_MOST = 600

FAILED = re.compile(r"^\[  FAILED  \] ([\w/.]+)", re.MULTILINE)
STARTED = re.compile(r"^\[ RUN      \] ([\w/.]+)", re.MULTILINE)


def mutated(mutation: Mutation, text: str) -> str:
    pattern = r"\s+".join(re.escape(word) for word in mutation.old.split())
    found = list(re.finditer(pattern, text))
    if len(found) != 1:
        raise LookupError(f"{mutation.name}: {mutation.file} has its text {len(found)} times, not once")
    return text[: found[0].start()] + mutation.new + text[found[0].end() :]


def copy_if_changed(source: str, target: str) -> str:
    """Keeps the times of equal files: a build knows by them which objects hold a bug."""
    if not Path(target).exists() or not filecmp.cmp(source, target, shallow=False):
        shutil.copyfile(source, target)
    return target


class Workplace:
    """A copy of the tree with a build of its own."""

    def __init__(self, folder: Path, jobs: int) -> None:
        self.tree = folder / "tree"
        self.build_folder = folder / "build"
        self.jobs = jobs
        shutil.copytree(ROOT, self.tree, ignore=LEFT_OUT, copy_function=copy_if_changed, dirs_exist_ok=True)
        configure = ["cmake", "-S", self.tree, "-B", self.build_folder, "-G", "Ninja"]
        subprocess.run([*configure, "-DCMAKE_BUILD_TYPE=Release"], check=True, stdout=subprocess.DEVNULL)

    def build(self, program: str) -> str:
        """The compiler's messages; empty when it built."""
        command = ["cmake", "--build", self.build_folder, "--target", program, "-j", str(self.jobs)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else done.stdout[-3000:]

    def first_failure(self, program: str, tests: str) -> str:
        """The test that failed, crashed or hung first; empty when all passed."""
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "TILEWISE_TEST_SET": "ci"}
        if program != "tilewise_invariants_tests":
            environment["TILEWISE_TEST_SET"] = "smoke"
        command = [self.build_folder / "tests" / program, f"--gtest_filter={tests}", "--gtest_fail_fast"]
        try:
            done = subprocess.run(
                command, capture_output=True, env=environment, timeout=SECONDS_AT_MOST, check=False
            )
            output, status, how = done.stdout, done.returncode, "crashed"
        except subprocess.TimeoutExpired as late:
            output, status, how = late.stdout or b"", 1, "hung"
        text = output.decode(errors="replace")
        started = STARTED.findall(text)
        if not started:
            raise LookupError(f"{program}: no test fits {tests}")
        if status == 0:
            return ""
        failed = FAILED.search(text)
        return failed[1] if failed else f"{started[-1]} ({how})"

    def result_of(self, mutation: Mutation) -> str:
        path = self.tree / mutation.file
        original = path.read_text(encoding="utf-8")
        path.write_text(mutated(mutation, original), encoding="utf-8")
        try:
            messages = self.build(mutation.program)
            if messages:
                raise LookupError(f"{mutation.name}: does not compile\n{messages}")
            return self.first_failure(mutation.program, mutation.tests)
        finally:
            path.write_text(original, encoding="utf-8")


def check_healthy(workplace: Workplace, mutations: list[Mutation]) -> None:
    """Without a bug every filter must pass, or failures would mean nothing."""
    tests: dict[str, set[str]] = {}
    for mutation in mutations:
        mutated(mutation, (workplace.tree / mutation.file).read_text(encoding="utf-8"))
        tests.setdefault(mutation.program, set()).add(mutation.tests)
    for program, filters in tests.items():
        messages = workplace.build(program)
        if messages:
            raise LookupError(f"{program} does not build\n{messages}")
        failure = workplace.first_failure(program, ":".join(sorted(filters)))
        if failure:
            raise LookupError(f"{program} fails without any bug: {failure}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of the bugs to plant; all without them")
    parser.add_argument("--work", type=Path, help="folder to work in, kept for the next time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--list", action="store_true", help="print the bugs and plant none")
    options = parser.parse_args()
    chosen = [m for m in MUTATIONS if not options.names or any(part in m.name for part in options.names)]
    if options.list:
        print("\n".join(f"{m.name} ({m.file})" for m in chosen))
        return 0
    caught = 0
    with tempfile.TemporaryDirectory() as temporary:
        try:
            workplace = Workplace(options.work or Path(temporary), options.jobs)
            check_healthy(workplace, chosen)
        except LookupError as error:
            print(error, file=sys.stderr)
            return 1
        for mutation in chosen:
            try:
                failure = workplace.result_of(mutation)
                print(f"{mutation.name}: {failure or 'SURVIVED'}", flush=True)
                caught += 1 if failure else 0
            except LookupError as error:
                print(error, flush=True)
    print(f"{len(chosen)} bugs, {caught} caught")
    return 0 if 0 < caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
