#!/usr/bin/env python3
"""Builds the wheel, installs it into a fresh virtual environment and calls every operator there.

  tools/check_wheel.py --python PYTHON                build with PYTHON's torch, then check with it
  tools/check_wheel.py --python PYTHON --wheel FILE   check a wheel that is there, with another torch

PYTHON must have torch, and scikit-build-core to build. The fresh environment sees PYTHON's packages, so that
torch is not downloaded again, but none of this source tree.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SMOKE = Path(__file__).with_name("wheel_smoke.py")
# What a wheel must hold, and what it must not.
WANTED = (
    "tilewise/__init__.py",
    "tilewise/_ops.py",
    "tilewise/py.typed",
    "tilewise/torch_ops.pyi",
    "tilewise/libtilewise_torch.so",
    "flash_mla/__init__.py",
    "flash_mla/py.typed",
)
UNWANTED = (".h", ".a", ".cmake", ".cpp", ".pyc")


def run(*command: str | Path, folder: Path | None = None) -> str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TILEWISE_"))}
    result = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise SystemExit(f"check_wheel: {command[0]} failed with {result.returncode}:\n{result.stdout}")
    return result.stdout


def build(python: Path, folder: Path) -> Path:
    print(f"check_wheel: building with {python}", flush=True)
    run(python, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", folder, ROOT)
    (wheel,) = folder.glob("tilewise-*.whl")
    return wheel


def check_contents(wheel: Path) -> None:
    if not wheel.name.split("-", 2)[2].startswith("py3-none-"):
        raise SystemExit(f"check_wheel: the tag must be py3-none-<platform>, got {wheel.name}")
    names = zipfile.ZipFile(wheel).namelist()
    missing = [name for name in WANTED if name not in names]
    surplus = [name for name in names if name.endswith(UNWANTED)]
    if missing or surplus:
        raise SystemExit(f"check_wheel: {wheel.name} lacks {missing} and should not hold {surplus}")


def fresh_environment(python: Path, folder: Path) -> Path:
    """A virtual environment that also finds the packages of `python`."""
    packages = run(
        python, "-c", "import torch, pathlib; print(pathlib.Path(torch.__path__[0]).parent, end='')"
    )
    run(python, "-m", "venv", folder)
    fresh = folder / "bin" / "python"
    own = run(fresh, "-c", "import sysconfig; print(sysconfig.get_path('purelib'), end='')")
    (Path(own) / "with_torch.pth").write_text(f"{packages}\n", encoding="utf-8")
    return fresh


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="an interpreter with torch")
    parser.add_argument("--wheel", type=Path, help="a wheel to check; without it one is built")
    parser.add_argument("--keep", type=Path, help="folder for the wheel that is built")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        python = Path(os.path.abspath(options.python))  # noqa: PTH100 (resolve() would leave a virtual environment)
        wheels = options.keep.resolve() if options.keep else folder / "wheels"
        wheel = options.wheel.resolve() if options.wheel else build(python, wheels)
        check_contents(wheel)
        fresh = fresh_environment(python, folder / "fresh")
        run(fresh, "-m", "pip", "install", "--no-deps", "--no-index", wheel)
        print(f"check_wheel: {wheel.name}, {wheel.stat().st_size:,} bytes", flush=True)
        print(run(fresh, "-I", SMOKE, folder=folder), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
