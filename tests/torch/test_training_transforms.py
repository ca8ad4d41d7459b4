"""Gradients of what was traced, exported or transformed while nothing required grad: right, or refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tilewise
import torch
from ops_calls import (
    Call,
    assert_same_bits,
    bf16,
    block_sparse_prefill_fwd,
    dense_prefill_fwd,
    i32,
    selection,
    sparse_prefill_fwd,
)
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

CALLS: dict[str, Call] = {
    "dense": dense_prefill_fwd(causal=True),
    "block-sparse": block_sparse_prefill_fwd(selection()),
    "tokens": sparse_prefill_fwd(topk_length=i32(2, 6, 0, 9, 5)),
}
each_call = pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
Function = Callable[[Tensor], Tensor]


def of_queries(call: Call) -> Function:
    """The output as a function of q alone."""
    _q, *others = call.args
    return lambda q: getattr(tilewise, call.op)(q, *others, **call.kwargs)[0]


def loss_of(function: Function) -> Function:
    return lambda q: function(q).float().square().sum()


def gradient(function: Function, q: Tensor) -> Tensor:
    leaf = q.clone().requires_grad_()
    loss_of(function)(leaf).backward()
    assert leaf.grad is not None
    return leaf.grad


class Layer(torch.nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, q: Tensor) -> Tensor:
        return self.function(q)


def exported(function: Function, q: Tensor, **options: Any) -> Function:
    return torch.export.export(Layer(function), (q,), **options).module()


def exported_without_gradients(function: Function, q: Tensor) -> Function:
    with torch.no_grad():
        return exported(function, q)


TRACERS: dict[str, Callable[[Function, Tensor], Function]] = {
    "export": exported,
    "strict export": lambda function, q: exported(function, q, strict=True),
    "export without gradients": exported_without_gradients,
    "jit.trace": lambda function, q: torch.jit.trace(function, (q,)),
    "make_fx": lambda function, q: make_fx(function)(q),
    "compile": lambda function, _q: torch.compile(function, backend="aot_eager", fullgraph=True),
}


@each_call
@pytest.mark.parametrize("trace", TRACERS.values(), ids=TRACERS.keys())
def test_what_was_traced_without_gradients_has_them(call: Call, trace: Callable[..., Function]) -> None:
    torch._dynamo.reset()
    q, function = call.args[0], of_queries(call)
    traced = trace(function, q)
    assert_same_bits((traced(q),), (function(q),))
    assert_same_bits((gradient(traced, q),), (gradient(function, q),))


@each_call
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_outside_of_vmap(call: Call, compiled: bool) -> None:
    torch._dynamo.reset()
    q, function = call.args[0], of_queries(call)
    other = bf16(*q.shape, seed=9).to(q.dtype)
    mapped = torch.func.vmap(function)
    if compiled:
        mapped = torch.compile(mapped, backend="aot_eager")
    found = gradient(mapped, torch.stack([q, other]))
    assert_same_bits(tuple(found), (gradient(function, q), gradient(function, other)))


@each_call
@pytest.mark.parametrize("compiled", [False, True])
def test_transforms_that_differentiate_are_refused(call: Call, compiled: bool) -> None:
    torch._dynamo.reset()
    differentiate: Function = torch.func.grad(loss_of(of_queries(call)))
    if compiled:
        differentiate = torch.compile(differentiate, backend="aot_eager")
    with pytest.raises(RuntimeError, match="functorch"):
        differentiate(call.args[0])
