"""A small layer on torch.ops.tilewise.*, compiled and exported: no graph break, the eager layer's bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from ops_calls import GROUPS, HEADS, ProjectionLayer, assert_same_bits, layer_inputs, ops


class Layer(ProjectionLayer):
    def forward(
        self,
        x: torch.Tensor,
        cache: torch.Tensor,
        lists: torch.Tensor,
        places: torch.Tensor,
        table: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ops.append_kv(self.kv_proj(x), cache, places, "v4_fp8")
        q = self.q_proj(x).view(-1, HEADS, 512)
        out_fp8, out_sf, lse = ops.fused_decode(q, cache, lists, places, table, 0.05, GROUPS, 1e-6)
        out, sparse_lse = ops.sparse_decode(q.unsqueeze(1), cache, lists.unsqueeze(1), 0.05)
        merged, merged_lse = torch.empty_like(out[:, 0]), torch.empty_like(lse)
        parts, lses = torch.stack([out[:, 0], out[:, 0]]), torch.stack([sparse_lse[:, :, 0], lse])
        ops.combine_partials.out(parts, lses, out=merged, lse=merged_lse)
        return out_fp8.view(torch.uint8), out_sf, lse, out * 2, merged, merged_lse


def run_layer(layer: Callable[..., Any], s_q: int = 3) -> tuple[torch.Tensor, ...]:
    """The layer's outputs and the cache that it has changed."""
    inputs = layer_inputs(s_q)
    return *layer(*inputs), inputs[1]


def test_compiled_layer_gives_equal_bits() -> None:
    torch._dynamo.reset()
    layer = Layer()
    compiled = torch.compile(layer, fullgraph=True)
    with torch.no_grad():
        assert_same_bits(run_layer(compiled), run_layer(layer))


def test_compiled_layer_with_changing_sizes_gives_equal_bits() -> None:
    torch._dynamo.reset()
    layer = Layer()
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for s_q in (3, 5, 2):
            assert_same_bits(run_layer(compiled, s_q), run_layer(layer, s_q))


def test_exported_layer_gives_equal_bits() -> None:
    layer = Layer()
    with torch.no_grad():
        program = torch.export.export(layer, layer_inputs())
        assert_same_bits(run_layer(program.module()), run_layer(layer))
    called = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert {"tilewise.append_kv.default", "tilewise.fused_decode.default"} <= called
