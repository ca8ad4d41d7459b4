"""tilewise.torch_ops: the operators themselves, and a stub that says what their schemas say."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import tilewise
import torch

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "generate_torch_stub.py"
STUB = ROOT / "python" / "tilewise" / "torch_ops.pyi"


def test_the_stub_is_what_the_script_makes() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_stub_names_every_operator_with_its_arguments() -> None:
    tree = ast.parse(STUB.read_text(encoding="utf-8"))
    names = [node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)]
    assert names == tilewise.torch_ops.__all__
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    kinds = {n.target.id: n.annotation.id for n in tree.body if isinstance(n, ast.AnnAssign)}
    for name in names:
        packet = getattr(torch.ops.tilewise, name)
        methods = {m.name: m for m in classes[kinds[name]].body}
        assert set(methods) == {"__call__", *packet.overloads()}
        for overload in packet.overloads():
            schema, arguments = getattr(packet, overload)._schema, methods[overload].args
            assert [a.arg for a in arguments.args] == [
                "self",
                *(a.name for a in schema.arguments if not a.kwarg_only),
            ]
            assert [a.arg for a in arguments.kwonlyargs] == [a.name for a in schema.arguments if a.kwarg_only]


def test_the_module_holds_the_operators() -> None:
    for name in tilewise.torch_ops.__all__:
        assert getattr(tilewise.torch_ops, name) is getattr(torch.ops.tilewise, name)


def test_the_package_is_typed() -> None:
    assert (STUB.parent / "py.typed").is_file()
