"""Every test of tests/torch/test_native.py once more, with the operators' tensors on the GPU."""

from __future__ import annotations

import pytest
import test_native
from gpu_calls import PackageOnGpu

globals().update({name: value for name, value in vars(test_native).items() if name.startswith("test_")})


@pytest.fixture(autouse=True)
def _package_on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_native, "tilewise", PackageOnGpu())
