"""Which tensors get gradients, what is refused in whose name, and gradients under torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ops_calls
import pytest
import tilewise
import torch
from ops_calls import (
    HEADS,
    Call,
    assert_same_bits,
    backward,
    bf16,
    block_sparse_prefill_fwd,
    check_operator,
    dense_prefill_fwd,
    fp32,
    guarded_outputs,
    i32,
    nothing_written,
    ops,
    selection,
    sparse_prefill_fwd,
    token_backward,
)
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

ADVICE = "detach() it, or call under torch.no_grad() or torch.inference_mode()"

FORWARD: dict[str, Call] = {
    "dense": dense_prefill_fwd(causal=True),
    "dense, sink": dense_prefill_fwd(window=[20, 3], sink_bias=fp32(HEADS)),
    "block-sparse": block_sparse_prefill_fwd(selection()),
    "block-sparse, sink": block_sparse_prefill_fwd(selection(HEADS), sink_bias=bf16(HEADS)),
    "tokens": sparse_prefill_fwd(topk_length=i32(2, 6, 0, 9, 5)),
    "tokens, sink and indexer": sparse_prefill_fwd(indexer_topk=3, sink_bias=bf16(HEADS)),
}
each_forward = pytest.mark.parametrize("call", FORWARD.values(), ids=FORWARD.keys())
DIFFERENTIABLE = ("q", "k", "v", "kv", "sink_bias")


def arguments(call: Call) -> dict[str, Any]:
    names = [argument.name for argument in call.functional._schema.arguments]
    return {**dict(zip(names, call.args, strict=False)), **call.kwargs}


def differentiable(call: Call) -> list[str]:
    return [name for name in arguments(call) if name in DIFFERENTIABLE]


def with_leaves(call: Call, *names: str) -> tuple[dict[str, Any], list[Tensor]]:
    """The arguments, with copies of some that require grad."""
    changed = arguments(call)
    for name in names:
        changed[name] = changed[name].detach().clone().requires_grad_()
    return changed, [changed[name] for name in names]


def function_of(call: Call) -> Callable[..., tuple[Tensor, ...]]:
    return getattr(tilewise, call.op)


def expected_gradients(call: Call) -> dict[str, Tensor]:
    """By the names of what they are gradients of."""
    back = backward_of(call)
    return dict(zip(differentiable(call), back.run_native(), strict=True))


def expected_size(call: Call) -> int:
    return call.functional(*call.args, **call.kwargs)[0].numel()


def d_out_of(call: Call) -> Tensor:
    return backward_of(call).args[0]


def backward_of(call: Call) -> Call:
    return token_backward(call) if call.op == "sparse_prefill_fwd" else backward(call)


# ---- which gradients there are ------------------------------------------------------------------------


@each_forward
@pytest.mark.parametrize("through_operator", [True, False])
def test_gradients_are_those_of_the_backward_operator(call: Call, through_operator: bool) -> None:
    names = differentiable(call)
    changed, leaves = with_leaves(call, *names)
    function = call.functional if through_operator else function_of(call)
    out, *logs = function(**changed)
    assert out.requires_grad
    assert not any(t.requires_grad for t in logs)
    found = torch.autograd.grad(out, leaves, d_out_of(call))
    assert_same_bits(found, tuple(expected_gradients(call).values()))


@each_forward
def test_only_tensors_that_require_grad_get_one(call: Call) -> None:
    expected = expected_gradients(call)
    for name in differentiable(call):
        changed, (leaf,) = with_leaves(call, name)
        out, *_ = function_of(call)(**changed)
        out.backward(d_out_of(call))
        assert_same_bits((leaf.grad,), (expected[name],))
        assert all(
            value.grad is None for key, value in changed.items() if isinstance(value, Tensor) and key != name
        )


@each_forward
@pytest.mark.parametrize("through_jvp", [True, False])
def test_tangents_are_refused(call: Call, through_jvp: bool) -> None:
    values = arguments(call)
    for name in differentiable(call):

        def run(tensor: Tensor, name: str = name) -> Tensor:
            return function_of(call)(**{**values, name: tensor})[0]

        tensor = values[name]
        with pytest.raises(RuntimeError, match=f"^{call.op}: {name} must not have a tangent, "):
            if through_jvp:
                torch.func.jvp(run, (tensor,), (torch.ones_like(tensor),))
            else:
                with forward_ad.dual_level():
                    run(forward_ad.make_dual(tensor, torch.ones_like(tensor)))


def test_tangents_of_serving_operators_are_refused() -> None:
    decode, rows = ops_calls.dense_decode(), bf16(3, 512)
    values = arguments(decode)
    with forward_ad.dual_level():
        values["k_cache"] = forward_ad.make_dual(values["k_cache"], torch.ones_like(values["k_cache"]))
        with pytest.raises(RuntimeError, match=r"^dense_decode: k_cache must not have a tangent, "):
            tilewise.dense_decode(**values)
        with pytest.raises(RuntimeError, match=r"^append_kv: kv must not have a tangent, "):
            dual = forward_ad.make_dual(rows, torch.ones_like(rows))
            tilewise.append_kv(dual, ops_calls.pages("v4_fp8"), i32(0, 1, 2))


def no_grad_form(call: Call) -> Any:
    return getattr(ops, f"{call.op}_no_grad").default


@each_forward
def test_without_gradients_has_the_operators_bits(call: Call) -> None:
    given = {name: value for name, value in arguments(call).items() if name != "indexer_topk"}
    found = no_grad_form(call)(**given)
    assert_same_bits(found, call.functional(**given)[: len(found)])
    check_operator(no_grad_form(call), (), given)


def operators_of(run: Callable[[], Any]) -> list[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        run()
    names = [event.name for event in profiler.events()]
    return [name.removeprefix("tilewise::") for name in names if name.startswith("tilewise::")]


@each_forward
def test_gradients_alone_take_the_way_through_autograd(call: Call) -> None:
    without = call.op if "indexer_topk" in arguments(call) else f"{call.op}_no_grad"
    changed, _ = with_leaves(call, *differentiable(call))
    assert operators_of(call.run_native) == [without]
    with torch.no_grad():
        assert operators_of(lambda: function_of(call)(**changed)) == [without]
    with torch.inference_mode():
        assert operators_of(call.run_native) == [without]
    assert set(operators_of(lambda: function_of(call)(**changed))) == {call.op}


@each_forward
@pytest.mark.parametrize("name", ["q", "softmax_scale"])
def test_wrong_types_are_refused_in_the_name_of_the_function(call: Call, name: str) -> None:
    with pytest.raises(RuntimeError, match=rf"^tilewise::{call.op}\(\) Expected .* argument '{name}'"):
        call.changed(**{name: "wrong"})()


class Recorder(TorchDispatchMode):
    """The operators that were called."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.called.append(func)
        return func(*args, **(kwargs or {}))


@each_forward
def test_modes_see_the_operator_itself(call: Call) -> None:
    with Recorder() as recorder:
        call.run_native()
    assert recorder.called == [call.functional]


@each_forward
def test_without_gradients_nothing_is_recorded(call: Call) -> None:
    assert not any(t.requires_grad for t in call.run_native())
    changed, _ = with_leaves(call, *differentiable(call))
    with torch.no_grad():
        assert not any(t.requires_grad for t in function_of(call)(**changed))
    with torch.inference_mode():
        assert_same_bits(call.run_native(), call.run()[: len(call.outputs)])


@each_forward
def test_gradients_of_any_layout_are_taken(call: Call) -> None:
    """Autograd hands over whatever view the next operation makes."""
    names = differentiable(call)
    dense = d_out_of(call)
    room = torch.zeros(*dense.shape[:-1], dense.shape[-1] + 1, dtype=dense.dtype)
    room[..., 1:] = dense
    apart = dense.repeat_interleave(2, -1)[..., ::2]
    for view in (room[..., 1:], apart, dense.transpose(0, 1).contiguous().transpose(0, 1)):
        changed, leaves = with_leaves(call, *names)
        found = torch.autograd.grad(function_of(call)(**changed)[0], leaves, view)
        assert_same_bits(found, tuple(expected_gradients(call).values()))
    changed, leaves = with_leaves(call, *names)
    out = function_of(call)(**changed)[0]
    one_for_all = torch.autograd.grad(out.float().sum(), leaves)
    changed, leaves = with_leaves(call, *names)
    ones = torch.ones_like(dense)
    assert_same_bits(one_for_all, torch.autograd.grad(function_of(call)(**changed)[0], leaves, ones))


@each_forward
def test_lse_has_no_gradient(call: Call) -> None:
    changed, _ = with_leaves(call, *differentiable(call))
    lse = function_of(call)(**changed)[call.outputs.index("lse")]
    with pytest.raises(RuntimeError, match="does not require grad"):
        lse.sum().backward()


@each_forward
def test_a_tensor_kept_for_the_backward_must_not_change(call: Call) -> None:
    changed, _ = with_leaves(call, *differentiable(call))
    changed["q"] = changed["q"] * 1
    out, *_ = function_of(call)(**changed)
    with torch.no_grad():
        changed["q"].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@each_forward
def test_opcheck_with_gradients(call: Call) -> None:
    changed, _ = with_leaves(call, *differentiable(call))
    check_operator(call.functional, (), changed)


# ---- what is refused --------------------------------------------------------------------------------------


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(RuntimeError) as caught:
        call()
    assert type(caught.value) is RuntimeError
    return str(caught.value)


@each_forward
def test_double_backward_is_refused(call: Call) -> None:
    names = differentiable(call)
    changed, leaves = with_leaves(call, *names)
    out, *_ = function_of(call)(**changed)
    first = torch.autograd.grad(out.float().square().sum(), leaves, create_graph=True)
    assert all(gradient.requires_grad for gradient in first)
    back = backward_of(call)
    text = (
        f"{back.op}: {REFUSED_TWICE[back.op]} must not be differentiated, they have no gradients of their own"
    )
    for gradient in first:
        assert refusal(lambda gradient=gradient: gradient.sum().backward(retain_graph=True)) == text


REFUSED_TWICE = {
    "dense_prefill_bwd": "dq, dk, dv and d_sink",
    "block_sparse_prefill_bwd": "dq, dk, dv and d_sink",
    "sparse_prefill_bwd": "dq, dkv, d_sink and kl_target",
}


@each_forward
def test_outputs_of_the_callers_are_refused_where_gradients_are_wanted(call: Call) -> None:
    for wanted in differentiable(call):
        changed, _ = with_leaves(call, wanted)
        for name, guard in guarded_outputs(call).items():
            view = guard.view
            given = {**changed, name: view}
            assert refusal(lambda given=given: function_of(call)(**given)) == (
                f"{call.op}: {name} must be left out where {wanted} requires grad, "
                f"got {str(view.dtype).removeprefix('torch.')} {list(view.shape)}"
            )
            assert nothing_written([guard])
            with torch.no_grad():
                assert function_of(call)(**given)[call.outputs.index(name)] is view


@each_forward
def test_backward_functions_are_not_differentiable(call: Call) -> None:
    back = backward_of(call)
    values = arguments(back)
    for name, value in values.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            changed, _ = with_leaves(back, name)
            assert refusal(lambda changed=changed: function_of(back)(**changed)) == (
                f"{back.op}: {name} must not require grad, the operator is not differentiable: {ADVICE}"
            )


def test_a_sink_without_a_gradient_is_refused_where_gradients_are_wanted() -> None:
    call = sparse_prefill_fwd(attn_sink=fp32(HEADS))
    for wanted in ("q", "kv"):
        changed, _ = with_leaves(call, wanted)
        assert refusal(lambda changed=changed: tilewise.sparse_prefill_fwd(**changed)) == (
            f"sparse_prefill_fwd: attn_sink must be left out where {wanted} requires grad, got float32 [4]"
        )
        assert refusal(lambda changed=changed: call.functional(**changed)) == (
            "sparse_prefill_fwd: attn_sink must be left out where gradients are wanted (sink_bias has them), "
            "got float32 [4]"
        )
    changed, _ = with_leaves(call, "attn_sink")
    assert refusal(lambda: tilewise.sparse_prefill_fwd(**changed)) == (
        f"sparse_prefill_fwd: attn_sink must not require grad, only q, kv and sink_bias may: {ADVICE}"
    )
    with torch.no_grad():
        assert_same_bits(tilewise.sparse_prefill_fwd(**changed), call.run_native())


# ---- torch.compile ----------------------------------------------------------------------------------------

WIDTH = 64


class Layer(torch.nn.Module):
    """Projections around attention: dense, to selected blocks, and to listed tokens.

    Where gradients or outputs meet, two of them are added and nothing is done with the sum: a compiled
    program rounds fewer intermediate results.
    """

    COLUMNS = (3 * HEADS * 128, (HEADS + 1) * 512)

    def __init__(self) -> None:
        super().__init__()
        self.in_proj = torch.nn.Linear(WIDTH, sum(self.COLUMNS), bias=False, dtype=torch.bfloat16)
        self.out_proj = torch.nn.Linear(HEADS * (128 + 512), WIDTH, bias=False, dtype=torch.bfloat16)
        for i, weight in enumerate(self.parameters()):
            weight.data = bf16(*weight.shape, seed=i) / 8
        self.sink = torch.nn.Parameter(fp32(HEADS))

    def forward(self, x: Tensor, ends: Tensor, lists: Tensor) -> tuple[Tensor, Tensor]:
        n = x.shape[0]
        whole, latent = self.in_proj(x).split(self.COLUMNS, dim=1)
        q, k, v = whole.unflatten(1, (3, HEADS, 128)).unbind(1)
        lengths = (ends, ends, n, n, 128**-0.5)
        dense, lse = tilewise.dense_prefill_fwd(q, k, v, *lengths, causal=True, sink_bias=self.sink)
        blocks, _ = tilewise.block_sparse_prefill_fwd(q, k, v, lists, *lengths, 64, 64)
        q, kv = latent.unflatten(1, (HEADS + 1, 512)).split([HEADS, 1], dim=1)
        entries = lists[:1, None].expand(n, 1, -1)
        tokens, *_ = tilewise.sparse_prefill_fwd(q, kv, entries, 0.05, sink_bias=self.sink)
        return self.out_proj(torch.cat([dense + blocks, tokens], -1).flatten(1)), lse


def run_layer(layer: Any, module: Layer, n: int) -> tuple[Tensor, ...]:
    """The output and every gradient."""
    x = bf16(n, WIDTH, seed=4).requires_grad_()
    module.zero_grad()
    out, lse = layer(x, i32(0, n // 3, n), selection())
    out.backward(bf16(n, WIDTH, seed=5))
    return out.detach(), lse, x.grad, *(p.grad.clone() for p in module.parameters())


def test_compiled_layer_gives_equal_bits() -> None:
    torch._dynamo.reset()
    module = Layer()
    compiled = torch.compile(module, fullgraph=True)
    expected = run_layer(module, module, 200)
    assert len(expected) == 6 and all(t.abs().sum() > 0 for t in expected)
    assert_same_bits(run_layer(compiled, module, 200), expected)


@each_forward
def test_compiled_gradients_of_any_place_are_taken(call: Call) -> None:
    """What lies behind three elements of another tensor comes back from there, misaligned."""
    changed, leaves = with_leaves(call, *differentiable(call))
    front = torch.zeros(3, dtype=torch.bfloat16)
    weights = bf16(3 + expected_size(call), seed=7)

    def loss(function: Callable[..., tuple[Tensor, ...]]) -> Tensor:
        return (torch.cat([front, function(**changed)[0].flatten()]) * weights).sum()

    eager = torch.autograd.grad(loss(call.functional), leaves)
    compiled = torch.autograd.grad(loss(torch.compile(call.functional, backend="aot_eager")), leaves)
    assert_same_bits(compiled, eager)


def test_compiled_layer_with_changing_sizes_gives_equal_bits() -> None:
    torch._dynamo.reset()
    module = Layer()
    compiled = torch.compile(module, fullgraph=True, dynamic=True)
    for n in (200, 130, 64):
        assert_same_bits(run_layer(compiled, module, n), run_layer(module, module, n))


def test_compiled_inversion_has_a_size_that_values_tell() -> None:
    torch._dynamo.reset()

    def count(lists: Tensor) -> tuple[Tensor, Tensor]:
        row_ptr, q_blocks = tilewise.invert_block_selection(lists, 3)
        return row_ptr * 2, q_blocks + 1

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(count, fullgraph=True)
        for heads in ((), (HEADS,)):
            assert_same_bits(compiled(selection(*heads)), count(selection(*heads)))


def test_opcheck_invert() -> None:
    for heads in ((), (HEADS,)):
        check_operator(ops.invert_block_selection.default, (selection(*heads), 3), {})
    room = {"row_ptr": torch.zeros(4, dtype=torch.int32), "q_blocks": torch.zeros(15, dtype=torch.int32)}
    check_operator(ops.invert_block_selection.out, (selection(), 3), room)


def test_exported_layer_gives_equal_bits() -> None:
    module = Layer()
    inputs = (bf16(200, WIDTH, seed=4), i32(0, 66, 200), selection())
    with torch.no_grad():
        program = torch.export.export(module, inputs)
        assert_same_bits(program.module()(*inputs), module(*inputs))
    called = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    names = ("dense_prefill_fwd", "block_sparse_prefill_fwd", "sparse_prefill_fwd")
    assert {f"tilewise.{name}.default" for name in names} <= called
