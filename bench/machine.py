"""What a benchmark's report says about where it was made."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import tilewise
import torch

ROOT = Path(__file__).resolve().parents[1]


def commit() -> str:
    """The tree's commit, with a mark where it has changes; "unknown" outside of a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git
        return "unknown"
    return result.stdout.strip() or "unknown"


def cpu_entry(name: str) -> str:
    """As /proc/cpuinfo has it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), "unknown")


def cpu_flags() -> list[str]:
    """The names of the processor's extensions."""
    return cpu_entry("flags").split()


def device_name(device: torch.device) -> str:
    """What the driver calls a GPU; "cpu" for the CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def describe_machine() -> dict[str, object]:
    return {
        "tilewise": tilewise.__version__,
        "commit": commit(),
        "torch": torch.__version__,
        "cpu": cpu_entry("model name"),
        "cpus": os.cpu_count(),
    }
