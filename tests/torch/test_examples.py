"""The examples in Python run as they are, and the README shows what runs."""

from __future__ import annotations

import operator
import subprocess
import sys
from pathlib import Path

import flash_mla
import tilewise
import torch
from flash_mla import fused_norm_rope_attn_rope_cast as fused
from ops_calls import bf16, bits, fp32, indices

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / script], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def readme_block(name: str) -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return text.split(f"<!-- {name} -->\n```python\n")[1].split(f"```\n<!-- /{name} -->")[0]


def test_mixed_step() -> None:
    last = run("mixed_step.py").splitlines()[-1]
    assert last == "both ranges equal those of separate calls, and the padding is untouched"


def test_readme_example() -> None:
    assert readme_block("python-example") == (EXAMPLES / "readme_example.py").read_text(encoding="utf-8")
    assert run("readme_example.py") == ""


def test_readme_support_table() -> None:
    """Each name of the table is there, and each operator is in the table."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = text.split("<!-- support-table -->\n")[1].split("<!-- /support-table -->")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in table.splitlines()[2:]]
    no_operators = {"__version__", "get_num_threads", "save_case", "set_num_threads", "torch_ops"}
    plans = {"dense_decode_plan", "sparse_decode_plan"}
    assert {native for native, _ in rows} == set(tilewise.__all__) - no_operators - plans
    names = [name for _, cell in rows for name in cell.split(", ") if name]
    assert len(names) >= 8
    for name in names:
        assert callable(operator.attrgetter(name)(flash_mla))


def test_readme_results() -> None:
    command = [sys.executable, ROOT / "bench" / "readme_tables.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_readme_training() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    block = text.split("### Training\n\n```python\n")[1].split("```")[0]
    names: dict[str, object] = {}
    exec(block, names)
    assert all(names[name].grad.abs().max() > 0 for name in ("q", "k", "v", "sink"))


def test_readme_mixed_step() -> None:
    tokens, n, h_q, n_wv_group = 7, 3, 8, 2
    q = bf16(tokens, h_q, 512)
    places = torch.arange(tokens, dtype=torch.int32)
    settings = (False, 64, fp32(16, 64, seed=5), n_wv_group, 32, True, True, True)
    decode_args = (
        True,
        1e-6,
        places[:n],
        *settings,
        q[:n],
        bf16(3, 4, 1, 512),
        indices(n, 6, below=12),
        0.05,
    )
    keys, lists = bf16(9, 1, 512, seed=2), indices(tokens - n, 1, 6, below=9)
    prefill_args = (False, 0.0, places[n:], *settings, q[n:], keys, lists, 0.05)
    names = {
        "torch": torch,
        "decode": fused.decode,
        "prefill": fused.prefill,
        "N": tokens,
        "n": n,
        "h_q": h_q,
        "n_wv_group": n_wv_group,
        "decode_args": decode_args,
        "prefill_args": prefill_args,
    }
    exec(readme_block("mixed-step"), names)
    separate = fused.decode(*decode_args)[:2], fused.prefill(*prefill_args)[:2]
    for name, parts in zip(("out_fp8", "out_sf"), zip(*separate, strict=True), strict=True):
        assert torch.equal(bits(names[name]), bits(torch.cat([bits(part) for part in parts])))
