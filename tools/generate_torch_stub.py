#!/usr/bin/env python3
"""Writes python/tilewise/torch_ops.pyi, the signatures of torch.ops.tilewise, from the registered schemas.

  tools/generate_torch_stub.py            write the file
  tools/generate_torch_stub.py --check    say whether the file is what would be written

PYTHONPATH must hold python/, and TILEWISE_TORCH_LIBRARY name the built library.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from tilewise import _ops

STUB = Path(__file__).resolve().parents[1] / "python" / "tilewise" / "torch_ops.pyi"

# The layout is the formatter's own.
HEADER = '''# Written by tools/generate_torch_stub.py from the operators' schemas; not to be edited.
"""torch.ops.tilewise under a name that type checkers know."""

from collections.abc import Sequence

from torch import Tensor
'''

TYPES = {
    "Tensor": "Tensor",
    "Optional[Tensor]": "Tensor | None",
    "float": "float",
    "Optional[float]": "float | None",
    "int": "int",
    "Optional[int]": "int | None",
    "bool": "bool",
    "str": "str",
    "Optional[str]": "str | None",
    "List[int]": "Sequence[int]",
}


def parameter(argument: Any) -> str:
    text = f"{argument.name}: {TYPES[str(argument.type)]}"
    if not argument.has_default_value():
        return text
    default = argument.default_value
    return f"{text} = {tuple(default) if isinstance(default, list) else default!r}"


def parameters(schema: Any) -> list[str]:
    names: list[str] = ["self"]
    in_keywords = False
    for argument in schema.arguments:
        if argument.kwarg_only and not in_keywords:
            names.append("*")
        in_keywords = argument.kwarg_only
        names.append(parameter(argument))
    return names


def returned(schema: Any) -> str:
    types = [TYPES[str(r.type)] for r in schema.returns]
    if not types:
        return "None"
    return types[0] if len(types) == 1 else f"tuple[{', '.join(types)}]"


def method(name: str, schema: Any) -> str:
    lines = "".join(f"        {line},\n" if line != "*" else "        *,\n" for line in parameters(schema))
    return f"    def {name}(\n{lines}    ) -> {returned(schema)}: ...\n"


def operator(name: str) -> str:
    packet = getattr(torch.ops.tilewise, name)
    kind = "_" + "".join(part.title() for part in name.split("_"))
    methods = [method(form, packet.default._schema) for form in ("__call__", "default")]
    if "out" in packet.overloads():
        methods.append(method("out", packet.out._schema))
    return f"class {kind}:\n{''.join(methods)}\n{name}: {kind}\n"


def stub() -> str:
    return "\n".join([HEADER, *(operator(name) for name in _ops.operator_names())])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if the file is another one")
    options = parser.parse_args()
    text = stub()
    if not options.check:
        STUB.write_text(text, encoding="utf-8")
    elif STUB.read_text(encoding="utf-8") != text:
        print(f"{STUB} is not what {Path(__file__).name} writes", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
