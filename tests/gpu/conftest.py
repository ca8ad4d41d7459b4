"""Shares the calls of tests/torch and tests/compat."""

import sys
from pathlib import Path

for folder in ("torch", "compat"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / folder))
