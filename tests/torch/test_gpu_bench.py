"""The five steps that bench/gpu_against_torch.py times compute what the fused operators do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))
import gpu_against_torch as bench  # noqa: E402


def test_smoke_run_on_the_cpu(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    options = ["--device", "cpu", "--smoke", "--rounds", "3", "--json", report]
    command = [sys.executable, BENCH / "gpu_against_torch.py", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    found = json.loads(report.read_text(encoding="utf-8"))
    assert found["wrong"] == []
    assert [case["case"].split()[0] for case in found["results"]] == [
        "fused_prefill",
        "fused_decode",
        "fused_decode",
    ]
    for case in found["results"]:
        steps = case["contestants"]["five steps"]
        assert steps["off"] <= bench.LIMIT
        assert steps["times_slower"] > 0
        assert case["rounds"] == 3


@pytest.mark.parametrize("step", ["before", "behind"])
def test_a_step_left_out_is_noticed(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    turned = bench.turned
    skipped = step == "behind"
    monkeypatch.setattr(
        bench, "turned", lambda x, cos_sin, back: x if back == skipped else turned(x, cos_sin, back)
    )
    with torch.no_grad():
        for make in bench.smoke_cases():
            measured = bench.Measured(make(), False, bench.Budget(60))
            measured.prepare()
            assert measured.wrong == ["five steps"], measured.contestants


def test_a_refusal_is_a_line_of_the_report() -> None:
    def refuse() -> bench.Run:
        raise RuntimeError("no such kernel")

    contestants = [bench.Contestant("ours", lambda: lambda: torch.ones(2)), bench.Contestant("torch", refuse)]
    case = bench.Case("a case", False, contestants, bench.off_values)
    measured = bench.Measured(case, False, bench.Budget(1))
    measured.prepare()
    found = measured.report(3, 1)
    assert found["contestants"]["torch"] == {"refused": "RuntimeError: no such kernel"}
    assert found["contestants"]["ours"]["us"] > 0
    assert measured.wrong == []
