"""examples/train_step.py: the loss falls, as it does with the same layer in plain torch."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "train_step.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_step", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


train_step = load()


def visible() -> Tensor:
    """[tokens, tokens], from the definition: causal, and block 0 or one of the last two blocks."""
    block = torch.arange(train_step.TOKENS) // train_step.BLOCK
    behind = block[:, None] - block[None]
    selected = (block[None] == 0) | ((behind >= 0) & (behind < 2))
    return selected & torch.ones(train_step.TOKENS, train_step.TOKENS).tril().bool()


def plain_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.float().transpose(0, 1) for x in (q, k, v))
    scores = (q @ k.transpose(1, 2)) * train_step.SCALE
    weights = scores.masked_fill(~visible(), float("-inf")).softmax(-1)
    return (weights @ v).transpose(0, 1).bfloat16()


@pytest.fixture(scope="module")
def curve() -> Tensor:
    return torch.tensor(train_step.train(train_step.block_sparse_attention))


def test_the_loss_falls(curve: Tensor) -> None:
    assert len(curve) == 200
    assert curve[0] > 2.5
    assert curve[-20:].max() < 0.05


def test_the_curve_is_that_of_plain_torch(curve: Tensor) -> None:
    expected = torch.tensor(train_step.train(plain_attention))
    assert (curve - expected).norm() <= 0.02 * expected.norm()
    # Twenty steps at a time, too, in parts of the first loss.
    means, expected_means = (losses.view(-1, 20).mean(1) for losses in (curve, expected))
    assert ((means - expected_means).abs() <= 0.02 * expected[0]).all()


def test_one_step_has_the_gradients_of_plain_torch() -> None:
    tokens = next(train_step.words(3))
    gradients = []
    for attention in (train_step.block_sparse_attention, plain_attention):
        torch.manual_seed(3)
        model = train_step.Model(attention)
        logits = model(tokens[:-1])[train_step.WORD :]
        torch.nn.functional.cross_entropy(logits, tokens[train_step.WORD + 1 :]).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        expected = gradients[1][name]
        assert (gradient - expected).norm() <= 0.02 * expected.norm(), name


def test_the_script_prints_the_curve() -> None:
    command = [sys.executable, SCRIPT, "--steps", "21"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ["step   0", "step  20"]
