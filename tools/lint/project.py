#!/usr/bin/env python3
"""The project's own rules, those that no ready-made linter knows.

Prints one line for each violation (file:line: rule: message) and exits 1 if there is any.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CODE_FOLDERS = (
    "include",
    "src",
    "bindings",
    "python",
    "tests",
    "cases",
    "bench",
    "tools",
    "examples",
    "cmake",
)
TEXT_FOLDERS = (*CODE_FOLDERS, "docs", ".ci")
CPP_SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".def"}
TEXT_SUFFIXES = CPP_SUFFIXES | {".py", ".md", ".txt", ".cmake", ".in", ".json", ".toml", ".sh", ""}
LINES_AT_MOST = 700

RECORD_BYTES = {656, 584, 528, 384, 352, 288}
# Where a record's size may be written as a number: its home, the oracle's own table, hand-made golden pages,
# and the rule itself with its test.
RECORD_BYTES_HOMES = ("src/formats/", "src/reference/", "tests/format/", "tools/lint/project")

TORCH_HEADER = re.compile(r"(torch|ATen|c10|caffe2)/|pybind11/")
CUDA_HEADER = re.compile(r"(cuda|cub|thrust|cutlass|cute|cooperative_groups|nv|mma\.h|curand|nvToolsExt)")
# What the rest of src may know of the GPU backend: it includes no CUDA header itself.
CUDA_ENTRY = "src/cuda/kernels.h"
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)
# Written in two halves so that this file passes its own rule.
UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME)\b")

# In this order: raw string, comment, string, number (its digit separators are no quotes), character.
CPP_TOKEN = re.compile(
    r"""R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)"
      | //[^\n]*
      | /\*.*?\*/
      | "(?:\\.|[^"\\\n])*"
      | (?P<number>\b\d[\w.']*)
      | '(?:\\.|[^'\\\n])*'""",
    re.DOTALL | re.VERBOSE,
)
CPP_INTEGER = re.compile(r"([\d']+)[uUlLzZ]*")


class Violation(NamedTuple):
    path: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


class Source(NamedTuple):
    path: str  # relative to the root, with slashes
    text: str

    @property
    def suffix(self) -> str:
        return Path(self.path).suffix

    def line_of(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1


class Tree:
    """The project's text files, and what they include."""

    def __init__(self, root: Path) -> None:
        self.sources: dict[str, Source] = {}
        for path in sorted(self._text_files(root)):
            name = path.relative_to(root).as_posix()
            self.sources[name] = Source(name, path.read_text(encoding="utf-8"))

    @staticmethod
    def _text_files(root: Path) -> Iterator[Path]:
        candidates = list(root.glob("*"))
        for folder in TEXT_FOLDERS:
            candidates += (root / folder).rglob("*")
        caches = {"__pycache__", ".ruff_cache"}
        for path in candidates:
            if path.is_file() and path.suffix in TEXT_SUFFIXES and caches.isdisjoint(path.parts):
                yield path

    def under(self, *prefixes: str) -> Iterator[Source]:
        return (source for name, source in self.sources.items() if name.startswith(prefixes))

    def resolve(self, includer: str, header: str) -> str | None:
        """The project's file that `#include "header"` means, if it is one."""
        own_folder = Path(includer).parent
        for folder in (own_folder, Path("src"), Path("include"), Path()):
            parts: list[str] = []
            for part in (folder / header).parts:
                if part == ".." and parts:
                    parts.pop()
                elif part != ".":
                    parts.append(part)
            name = "/".join(parts)
            if name in self.sources:
                return name
        return None

    def reachable(self, start: Source) -> Iterator[tuple[int, str, str, str | None]]:
        """Everything that `start` includes, directly or not.

        Yields (line in start, chain of files as text, header as written, its file in this project or None).
        """
        seen = {start.path}
        pending = [(start, 0, start.path)]
        while pending:
            source, line, chain = pending.pop()
            for match in INCLUDE.finditer(source.text):
                header = match[2]
                target = self.resolve(source.path, header)
                line_in_start = line or source.line_of(match.start())
                yield line_in_start, chain, header, target
                if target is not None and target not in seen:
                    seen.add(target)
                    pending.append((self.sources[target], line_in_start, f"{chain} -> {target}"))


def cpp_integers(source: Source) -> Iterator[tuple[int, int]]:
    for token in CPP_TOKEN.finditer(source.text):
        integer = CPP_INTEGER.fullmatch(token["number"] or "")
        if integer and integer[1].strip("'"):
            yield int(integer[1].replace("'", "")), source.line_of(token.start())


def python_integers(source: Source) -> Iterator[tuple[int, int]]:
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.NUMBER and re.fullmatch(r"[\d_]+", token.string):
            yield int(token.string), token.start[0]


def check_record_bytes(tree: Tree) -> Iterator[Violation]:
    for source in tree.under(*(f"{folder}/" for folder in CODE_FOLDERS)):
        if source.path.startswith(RECORD_BYTES_HOMES):
            continue
        if source.suffix in CPP_SUFFIXES:
            integers = cpp_integers(source)
        elif source.suffix == ".py":
            integers = python_integers(source)
        else:
            continue
        for value, line in integers:
            if value in RECORD_BYTES:
                message = f"{value} is a record's size in bytes; ask the library (record_bytes) instead"
                yield Violation(source.path, line, "record-bytes", message)


def check_oracle_is_independent(tree: Tree) -> Iterator[Violation]:
    for source in tree.under("src/reference/"):
        for line, chain, header, target in tree.reachable(source):
            if (target or f"src/{header}").startswith(("src/visit/", "src/softmax/")):
                message = f'the oracle must not use what it judges: {chain} includes "{header}"'
                yield Violation(source.path, line, "oracle-independent", message)


def check_backend_headers(tree: Tree) -> Iterator[Violation]:
    for source in tree.under("src/", "include/"):
        for match in INCLUDE.finditer(source.text):
            header = match[2]
            line = source.line_of(match.start())
            if TORCH_HEADER.match(header):
                message = f"<{header}> belongs to bindings/torch; nothing in src or include may know torch"
                yield Violation(source.path, line, "no-torch", message)
            elif match[1] == "<" and CUDA_HEADER.match(header) and not source.path.startswith("src/cuda/"):
                yield Violation(source.path, line, "no-cuda", f"<{header}> may be included in src/cuda alone")
            elif match[1] == '"' and is_cuda_header(header, tree.resolve(source.path, header)):
                entry = tree.resolve(source.path, header) == CUDA_ENTRY
                if not entry and not source.path.startswith("src/cuda/"):
                    message = f'"{header}" may be included in src/cuda alone'
                    yield Violation(source.path, line, "no-cuda", message)


def is_cuda_header(header: str, target: str | None) -> bool:
    if target is not None:
        return target.startswith("src/cuda/")
    return CUDA_HEADER.match(header) is not None


def check_shared_headers(tree: Tree) -> Iterator[Violation]:
    for source in tree.under("src/visit/", "src/softmax/", "src/formats/codec.h"):
        for line, chain, header, target in tree.reachable(source):
            if is_cuda_header(header, target):
                message = (
                    f"host and device share this file, so it needs no CUDA header: {chain} includes {header}"
                )
                yield Violation(source.path, line, "shared-header", message)


def check_length(tree: Tree) -> Iterator[Violation]:
    for source in tree.under("src/", "tests/", "tools/"):
        lines = source.text.count("\n")
        if lines > LINES_AT_MOST:
            message = f"{lines} lines, at most {LINES_AT_MOST}: split it by what its parts do"
            yield Violation(source.path, lines, "file-length", message)


def check_unfinished(tree: Tree) -> Iterator[Violation]:
    for source in tree.sources.values():
        for match in UNFINISHED.finditer(source.text):
            message = f"{match[0]}: finish it, or file an issue and leave the code without the mark"
            yield Violation(source.path, source.line_of(match.start()), "unfinished", message)


def check_whitespace(tree: Tree) -> Iterator[Violation]:
    for source in tree.sources.values():
        if source.text and not source.text.endswith("\n"):
            line = source.line_of(len(source.text))
            yield Violation(source.path, line, "final-newline", "the last line must end with a newline")
        if source.suffix in CPP_SUFFIXES and "\t" in source.text:
            line = source.line_of(source.text.index("\t"))
            yield Violation(source.path, line, "no-tabs", "indent with spaces; write \\t inside strings")


CHECKS = (
    check_record_bytes,
    check_oracle_is_independent,
    check_backend_headers,
    check_shared_headers,
    check_length,
    check_unfinished,
    check_whitespace,
)


def violations(root: Path) -> list[Violation]:
    tree = Tree(root)
    return [violation for check in CHECKS for violation in check(tree)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[2])
    found = violations(parser.parse_args().root)
    for violation in found:
        print(violation)
    print(f"project rules: {len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
