#!/usr/bin/env python3
"""Plants a violation of each of the project's rules in a small tree and expects it to be reported."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path

import project

# A tree that keeps every rule, coming close to breaking each.
CLEAN = {
    "README.md": "A record of 656 bytes.\n",
    "docs/kv-formats.md": "| v32_fp8 | 656 |\n\ttabs are fine here\n",
    "include/tilewise/tensor.h": "#include <cstdint>\n",
    "src/core/host_device.h": "#if defined(__CUDACC__)\n#endif\n",
    "src/cuda/common/copy.cuh": "#include <cuda_runtime.h>\n",
    "src/formats/records.def": "RECORD(v32_fp8, 656)\n",
    "src/formats/codec.h": '#include "core/host_device.h"\n',
    "src/reference/sparse.cpp": '#include "tilewise/tensor.h"\nint bytes = 584;\n',
    "src/visit/rules.h": '#include "core/host_device.h"\n',
    "src/softmax/state.h": "#include <cmath>\n",
    "src/cpu/forward.cpp": '#include "visit/rules.h"\n// 656 bytes\nint a = 6560 + 0x288 + 1\'528;\n',
    "src/cpu/error.cpp": 'auto text = "656";\n',
    "tests/format/golden_test.cpp": "int bytes = 288;\n",
    "tests/unit/long_test.cpp": "//\n" * 700,
    "cases/cases.py": "heads = 128  # 384\n",
}


class ProjectRules(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for path, text in CLEAN.items():
            self.write(path, text)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")

    def expect(self, path: str, line: int, rule: str, part_of_message: str) -> None:
        found = project.violations(self.root)
        self.assertEqual([(v.path, v.line, v.rule) for v in found], [(path, line, rule)])
        self.assertIn(part_of_message, found[0].message)

    def test_clean_tree_passes(self) -> None:
        self.assertEqual(project.violations(self.root), [])

    def test_every_record_size_is_found(self) -> None:
        for value in (656, 584, 528, 384, 352, 288):
            with self.subTest(value=value):
                self.write("src/cpu/decode.cpp", f"\nlong bytes = {value};\n")
                self.expect("src/cpu/decode.cpp", 2, "record-bytes", f"{value} is a record's size")

    def test_record_size_in_every_spelling(self) -> None:
        for code in (
            "f(656)",
            "x[656u]",
            "x = 656LL;",
            "'\"', 656",
            "/* 1 */ 656",
            'R"(")" 656',
            "1'000 + 656",
        ):
            with self.subTest(code=code):
                self.write("bench/speed.cpp", code + "\n")
                self.expect("bench/speed.cpp", 1, "record-bytes", "656")

    def test_record_size_in_public_header_test_and_python(self) -> None:
        for path in (
            "include/tilewise/x.h",
            "tests/unit/x_test.cpp",
            "cases/x.h",
            "tools/x.py",
            "examples/x.cpp",
        ):
            with self.subTest(path=path):
                self.write(path, "\nx = 528\n")
                self.expect(path, 2, "record-bytes", "528")
                (self.root / path).unlink()

    def test_oracle_uses_visit(self) -> None:
        self.write("src/reference/dense.cpp", '\n#include "visit/rules.h"\n')
        self.expect("src/reference/dense.cpp", 2, "oracle-independent", '"visit/rules.h"')

    def test_oracle_uses_softmax_by_a_relative_path(self) -> None:
        self.write("src/reference/dense.cpp", '#include "../softmax/state.h"\n')
        self.expect("src/reference/dense.cpp", 1, "oracle-independent", "softmax/state.h")

    def test_oracle_uses_visit_through_another_header(self) -> None:
        self.write("src/core/between.h", '#include "visit/rules.h"\n')
        self.write("src/reference/dense.cpp", '#include <cmath>\n#include "core/between.h"\n')
        self.expect("src/reference/dense.cpp", 2, "oracle-independent", "src/core/between.h")

    def test_oracle_uses_a_visit_header_that_is_gone(self) -> None:
        self.write("src/reference/dense.cpp", '#include "visit/gone.h"\n')
        self.expect("src/reference/dense.cpp", 1, "oracle-independent", "visit/gone.h")

    def test_torch_in_the_library(self) -> None:
        for path in ("src/core/x.cpp", "include/tilewise/x.h", "src/cuda/x.cu"):
            with self.subTest(path=path):
                self.write(path, "#include <torch/library.h>\n")
                self.expect(path, 1, "no-torch", "torch/library.h")
                (self.root / path).unlink()

    def test_cuda_outside_its_folder(self) -> None:
        for header in (
            "<cuda_runtime.h>",
            "<cuda.h>",
            '"cuda_bf16.h"',
            "<cub/cub.cuh>",
            '"cuda/common/copy.cuh"',
        ):
            with self.subTest(header=header):
                self.write("src/ops/x.cpp", f"\n\n# include {header}\n")
                self.expect("src/ops/x.cpp", 3, "no-cuda", header.strip('<">'))

    def test_shared_header_reaches_cuda(self) -> None:
        for path in ("src/visit/rules.h", "src/softmax/state.h", "src/formats/codec.h"):
            with self.subTest(path=path):
                self.write("src/core/device.h", "#include <cuda_fp8.h>\n")
                self.write(path, '#include "core/device.h"\n')
                found = {(v.path, v.line, v.rule) for v in project.violations(self.root)}
                self.assertIn((path, 1, "shared-header"), found)
                self.write(path, CLEAN[path])

    def test_long_file(self) -> None:
        for path in ("src/ops/x.cpp", "tests/unit/x_test.cpp", "tools/x.py"):
            with self.subTest(path=path):
                self.write(path, "\n" * 701)
                self.expect(path, 701, "file-length", "701 lines")
                (self.root / path).unlink()

    def test_unfinished_marks(self) -> None:
        for mark in ("TO" + "DO", "FIX" + "ME"):
            for path in ("src/ops/x.cpp", "docs/x.md", "dev", "CMakeLists.txt"):
                with self.subTest(mark=mark, path=path):
                    self.write(path, f"\n# {mark}: later\n")
                    self.expect(path, 2, "unfinished", mark)
                    (self.root / path).unlink()

    def test_missing_newline(self) -> None:
        for path in ("src/ops/x.cpp", "docs/x.md", "CMakePresets.json"):
            with self.subTest(path=path):
                self.write(path, "one\ntwo")
                self.expect(path, 2, "final-newline", "newline")
                (self.root / path).unlink()

    def test_tabs(self) -> None:
        self.write("src/ops/x.cpp", "int a;\n\tint b;\n")
        self.expect("src/ops/x.cpp", 2, "no-tabs", "spaces")


if __name__ == "__main__":
    unittest.main()
