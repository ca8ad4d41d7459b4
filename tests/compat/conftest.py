"""Shares the helpers and the oracle of tests/torch."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "torch"))
