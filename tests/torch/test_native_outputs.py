"""Outputs that the caller of tilewise.* owns: the same objects come back, with the allocating call's bits."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import tilewise
import torch
from ops_calls import (
    CALLS,
    GROUPS,
    HEADS,
    NO_GRAD,
    Call,
    Guarded,
    assert_same_bits,
    bf16,
    bits,
    each_call,
    fp32,
    fused_decode,
    fused_prefill,
    guarded_outputs,
    nothing_written,
    ops,
    pages,
    sparse_prefill_fwd,
)

each_output = pytest.mark.parametrize(
    ("call", "name"),
    [pytest.param(call, name, id=f"{key}, {name}") for key, call in CALLS.items() for name in call.outputs],
)


def default_of(argument: Any) -> Any:
    if not argument.has_default_value():
        return inspect.Parameter.empty
    return (
        tuple(argument.default_value) if isinstance(argument.default_value, list) else argument.default_value
    )


@pytest.mark.parametrize(
    "op", sorted({call.op for call in CALLS.values()} | {"append_kv", "invert_block_selection"})
)
def test_functions_have_the_schemas_arguments(op: str) -> None:
    packet = getattr(ops, op)
    schema = packet.out._schema if "out" in packet.overloads() else packet.default._schema
    parameters = inspect.signature(getattr(tilewise, op)).parameters.values()
    found = [(p.name, p.kind == p.KEYWORD_ONLY) for p in parameters]
    assert found == [(a.name, a.kwarg_only) for a in schema.arguments]
    defaults = [p.default for p in parameters if p.kind != p.KEYWORD_ONLY]
    assert defaults == [default_of(a) for a in schema.arguments if not a.kwarg_only]
    assert all(p.default is None for p in parameters if p.kind == p.KEYWORD_ONLY)


def test_everything_public_is_named_and_documented() -> None:
    assert sorted(tilewise.__all__) == tilewise.__all__
    for name in tilewise.__all__:
        assert getattr(tilewise, name).__doc__
    packets = set(tilewise.torch_ops.__all__) - NO_GRAD - {"noop"}
    assert packets <= set(tilewise.__all__)


@each_call
def test_the_function_has_the_operators_bits(call: Call) -> None:
    assert_same_bits(call.run_native(), call.run()[: len(call.outputs)])


@each_call
def test_given_outputs_are_returned_themselves(call: Call) -> None:
    guards = guarded_outputs(call)
    views = {name: guard.view for name, guard in guards.items()}
    results = call.run_native(**views)
    assert [result is views[name] for name, result in zip(call.outputs, results, strict=True)] == [
        True
    ] * len(views)
    assert_same_bits(results, call.run_native())
    assert [name for name, guard in guards.items() if not guard.neighbours_untouched()] == []


@each_output
def test_an_output_may_be_given_alone(call: Call, name: str) -> None:
    guard = guarded_outputs(call)[name]
    results = call.run_native(**{name: guard.view})
    assert results[call.outputs.index(name)] is guard.view
    expected = call.run_native()
    assert_same_bits(results, expected)
    assert [t.stride() for t in results if t is not guard.view] == [
        t.stride() for n, t in zip(call.outputs, expected, strict=True) if n != name
    ]
    assert guard.neighbours_untouched()


@pytest.mark.parametrize("call", [fused_prefill(), fused_decode(), fused_decode(num_splits=2)])
@pytest.mark.parametrize("alone", [True, False])
def test_bf16_output_is_written_beside_the_results(call: Call, alone: bool) -> None:
    plain = Guarded(torch.empty(call.args[0].shape[0], HEADS, 512, dtype=torch.bfloat16), without_gaps=False)
    others = {} if alone else {name: guard.view for name, guard in guarded_outputs(call).items()}
    results = call.run_native(**others, out_bf16=plain.view)
    assert_same_bits(results, call.run_native())
    assert plain.view.float().abs().max() > 0
    assert plain.neighbours_untouched()


def test_indexer_output_is_refused_without_indexer() -> None:
    guard = Guarded(fp32(5, HEADS), without_gaps=True)
    with pytest.raises(RuntimeError, match=r"^sparse_prefill_fwd: lse_indexer must be "):
        sparse_prefill_fwd().run_native(lse_indexer=guard.view)
    assert nothing_written([guard])


# ---- wrong outputs ------------------------------------------------------------------------------------


@each_output
@pytest.mark.parametrize("wrong", ["type", "shape", "rank"])
def test_a_wrong_output_is_refused_before_anything_is_written(call: Call, name: str, wrong: str) -> None:
    guards = guarded_outputs(call)
    views = {key: guard.view for key, guard in guards.items()}
    right = views[name]
    if wrong == "type":
        views[name] = right.to(torch.float64)
    elif wrong == "shape":
        views[name] = torch.empty((right.shape[0] + 1, *right.shape[1:]), dtype=right.dtype)
    else:
        views[name] = right[None]
    with pytest.raises(RuntimeError, match=rf"^{call.op}: {name} must be .*, got "):
        call.run_native(**views)
    assert nothing_written(guards.values())


@each_call
def test_a_wrong_input_leaves_given_outputs_alone(call: Call) -> None:
    guards = guarded_outputs(call)
    q = call.args[0]
    for wrong in (q.to(torch.float64), q[..., 0], q.flatten()):
        with pytest.raises(RuntimeError, match=rf"^{call.op}: \w+ must be "):
            Call(call.op, (wrong, *call.args[1:]), call.kwargs, call.outputs).run_native(
                **{name: guard.view for name, guard in guards.items()}
            )
    assert nothing_written(guards.values())


@each_output
def test_a_wrong_input_with_one_output_given_is_named(call: Call, name: str) -> None:
    """Outputs are then allocated for inputs that nobody has judged yet."""
    guard = guarded_outputs(call)[name]
    inputs = "|".join(a.name for a in call.functional._schema.arguments)
    for wrong in (call.args[0].flatten(), call.args[0].to(torch.float64)):
        changed = Call(call.op, (wrong, *call.args[1:]), call.kwargs, call.outputs)
        with pytest.raises(RuntimeError, match=rf"^{call.op}: ({inputs}) must be .*, got "):
            changed.run_native(**{name: guard.view})
    assert nothing_written([guard])


# ---- one pair of buffers for several calls -------------------------------------------------------------


def exact_pair(tokens: int, padded: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """out_fp8 and out_sf for all tokens, full of sentinels, and the memory of out_sf with its padding."""
    width = HEADS // GROUPS * 512
    out_fp8 = Guarded(torch.empty(tokens, GROUPS, width, dtype=torch.float8_e4m3fn), True).view
    memory = Guarded(torch.empty(GROUPS, width // 128, padded, dtype=torch.int32), True).view
    return out_fp8, memory.permute(2, 0, 1)[:tokens], memory


@pytest.mark.parametrize(("prefill_first", "padded"), [(True, 8), (False, 8), (True, 13)])
def test_prefill_and_decode_share_a_pair_of_buffers(prefill_first: bool, padded: int) -> None:
    prefill, decode = fused_prefill(), fused_decode(q_norm_eps=1e-6)
    s_prefill, s_decode = prefill.args[0].shape[0], decode.args[0].shape[0]
    tokens = s_prefill + s_decode
    out_fp8, out_sf, memory = exact_pair(tokens, padded)
    ranges = [(decode, slice(0, s_decode)), (prefill, slice(s_decode, tokens))]
    for call, part in reversed(ranges) if prefill_first else ranges:
        before_fp8, before_memory = out_fp8.clone(), memory.clone()
        pair = out_fp8[part], out_sf[part]
        results = call.run_native(out_fp8=pair[0], out_sf=pair[1])
        assert results[0] is pair[0] and results[1] is pair[1]
        assert_same_bits(results, call.run_native())
        # Put back what the call may have written: everything is as it was.
        after_fp8, after_memory = out_fp8.clone(), memory.clone()
        after_fp8[part] = before_fp8[part]
        after_memory[:, :, part] = before_memory[:, :, part]
        assert_same_bits((after_fp8, after_memory), (before_fp8, before_memory))
    assert_same_bits((out_fp8[:s_decode], out_sf[:s_decode]), decode.run_native()[:2])
    assert_same_bits((out_fp8[s_decode:], out_sf[s_decode:]), prefill.run_native()[:2])


def test_append_kv_writes_a_view() -> None:
    cache = pages("v32_fp8")
    guard = Guarded(cache, without_gaps=True)
    guard.view.copy_(cache)
    rows, slots = bf16(2, 576, seed=9), torch.tensor([3, 11])
    tilewise.append_kv(rows, guard.view, slots)
    tilewise.append_kv(rows, cache, slots)
    assert torch.equal(bits(guard.view), bits(cache))
    assert guard.neighbours_untouched()
