"""The program in docs/flash-mla.md does what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from flash_mla import fused_norm_rope_attn_rope_cast as fused
from ops_calls import assert_same_bits

PAGE = Path(__file__).resolve().parents[2] / "docs" / "flash-mla.md"


def test_mixed_step() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {}
    torch.manual_seed(3)
    exec(blocks[0], names)
    names["memory"].fill_(-1)
    for block in blocks[1:]:
        exec(block, names)
    assert names["out_sf"].stride() == (1, 256, 8)
    assert names["out_sf"][3:7].stride() == (1, 256, 8)
    assert (names["memory"][:, :, 7] == -1).all()

    alone = {}
    for name, keys, lists in (("first", "k_cache", "slots"), ("rest", "kv", "lists")):
        function = fused.decode if name == "first" else fused.prefill
        tokens = names[name]
        arguments = (names["positions"][tokens], *names["settings"], names["q"][tokens], names[keys])
        alone[name] = function(False, 0.0, *arguments, names[lists], 0.04)[:2]
        assert_same_bits((names["out_fp8"][tokens], names["out_sf"][tokens]), alone[name])
