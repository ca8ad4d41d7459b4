"""How the functions of this package call an operator: with outputs of the caller's, or with new ones."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from tilewise import _ops

NOT_DIFFERENTIABLE = "the operator is not differentiable"


def refuse_grad(op: str, arguments: dict[str, Any], reason: str = NOT_DIFFERENTIABLE) -> None:
    """Raises where a tensor requires grad: torch would go on without its gradient."""
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and value.requires_grad:
            raise RuntimeError(
                f"{op}: {name} must not require grad, {reason}: detach() it, "
                "or call under torch.no_grad() or torch.inference_mode()"
            )


def refuse_tangents(op: str, arguments: dict[str, Any]) -> None:
    """Raises where a tensor has a tangent of forward-mode differentiation: torch would go on without it."""
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and forward_ad.unpack_dual(value).tangent is not None:
            raise RuntimeError(
                f"{op}: {name} must not have a tangent, there is no forward-mode differentiation: "
                "unpack it first"
            )


def in_dual_level() -> bool:
    """Whether tensors may have tangents. torch has no public name for it."""
    return getattr(forward_ad, "_current_level", -1) >= 0


# Arguments that torch takes as they are; other tensors have rules of their own for what is done with them.
_ORDINARY = frozenset({torch.Tensor, torch.nn.Parameter, type(None), float, int, bool, str, tuple, list})

_is_compiling = torch.compiler.is_compiling
# What else sees which operators are called: modes, tracers, transforms. torch has no public names for them.
_num_modes = torch._C._len_torch_dispatch_stack
_is_tracing = torch._C._is_tracing
_transform = torch._C._functorch.peek_interpreter_stack


def _runs_as_it_is(args: tuple[Any, ...]) -> bool:
    """Whether torch does nothing with a call but run it.

    While it is traced or transformed, `requires_grad` does not tell whether somebody wants a gradient.
    """
    if _is_compiling() or _num_modes() or _is_tracing() or _transform() is not None:
        return False
    return _ORDINARY.issuperset(map(type, args))


def _listed(names: tuple[str, ...]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]])


class Operator:
    """An operator of torch.ops.tilewise in all of its forms.

    Args:
        name: the operator's.
        differentiable: the arguments that its functional form has gradients of.
        without_gradients: arguments that must be left out where gradients are wanted.
    """

    def __init__(
        self, name: str, differentiable: tuple[str, ...] = (), without_gradients: tuple[str, ...] = ()
    ) -> None:
        packet = getattr(torch.ops.tilewise, name)
        inputs = [a for a in packet.out._schema.arguments if not a.kwarg_only]
        self._name = name
        self._functional = packet.default
        # The same without gradients. It may lack the last arguments, and the outputs that they ask for.
        self._no_grad = None
        self._most_no_grad = 0
        if differentiable:
            no_grad = getattr(torch.ops.tilewise, f"{name}_no_grad").default
            self._no_grad = getattr(no_grad, "_op", no_grad)  # what the first calls
            self._most_no_grad = len(no_grad._schema.arguments)
        self._out = packet.out
        self._inputs = tuple(a.name for a in inputs)
        self._tensors = tuple(i for i, a in enumerate(inputs) if "Tensor" in str(a.type))
        self._outputs = tuple(a.name for a in packet.out._schema.arguments if a.kwarg_only)
        self._num_results = len(packet.default._schema.returns)
        self._looks = _ops.OUTPUTS[name]
        self._differentiable = differentiable
        self._without_gradients = without_gradients

    def call(self, args: tuple[Any, ...], given: tuple[torch.Tensor | None, ...]) -> Any:
        """Calls the operator.

        Args:
            args: the arguments in the schema's order. Those at the end that have defaults may be missing.
            given: the caller's outputs in the schema's order, None for those to allocate. Outputs at the end
                may be missing; one that the functional operator does not return is not allocated.

        Returns:
            Without outputs of the caller's what the functional operator returns, at least as far as `given`
            goes; else a tuple of the same outputs as far as `given` goes, where those that were given are the
            same objects. What the call does not ask for is None there, and without elements from the
            functional operator.
        """
        if in_dual_level():
            outputs = zip(self._outputs, given, strict=False)
            refuse_tangents(self._name, dict(zip(self._inputs, args, strict=False)) | dict(outputs))
        tracks = torch.is_grad_enabled() and self._any_requires_grad(args, given)
        if tracks:
            self._check_grad(dict(zip(self._inputs, args, strict=False)), given)
        for output in given:
            if output is not None:
                return self._call_out(args, given)
        if not tracks and len(args) <= self._most_no_grad and _runs_as_it_is(args):
            try:
                return self._no_grad(*args)
            except RuntimeError as error:
                # What torch itself refuses is said once more, in the name of the operator that was called.
                if f"{self._name}_no_grad" not in str(error):
                    raise
        return self._functional(*args)

    def _any_requires_grad(self, args: tuple[Any, ...], given: tuple[torch.Tensor | None, ...]) -> bool:
        try:
            for i in self._tensors:
                if i >= len(args):
                    break
                value = args[i]
                if value is not None and value.requires_grad:
                    return True
            for value in given:
                if value is not None and value.requires_grad:
                    return True
        except AttributeError:
            pass  # what is no tensor, torch refuses
        return False

    def _check_grad(self, args: dict[str, Any], given: tuple[torch.Tensor | None, ...]) -> None:
        """Raises unless the operator has the gradient of every tensor that requires one."""
        outputs = dict(zip(self._outputs, given, strict=False))
        if not self._differentiable:
            refuse_grad(self._name, args | outputs)
            return
        others = {name: value for name, value in args.items() if name not in self._differentiable}
        refuse_grad(self._name, others | outputs, f"only {_listed(self._differentiable)} may")
        wanted = next(n for n in self._differentiable if getattr(args.get(n), "requires_grad", False))
        for name in (*self._without_gradients, *outputs):
            value = args.get(name, outputs.get(name))
            if value is not None:
                raise RuntimeError(
                    f"{self._name}: {name} must be left out where {wanted} requires grad, "
                    f"got {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
                )

    def _call_out(self, args: tuple[Any, ...], given: tuple[torch.Tensor | None, ...]) -> Any:
        results = given[: self._num_results]
        for output in results:
            if output is None:
                results = self._with_new(args, results)
                break
        outputs = results + given[self._num_results :]
        self._out(*args, **dict(zip(self._outputs, outputs, strict=False)))
        # Else autograd would not notice that a tensor which it has kept was overwritten.
        increment_version([output for output in outputs if output is not None])
        return results

    def _with_new(self, args: tuple[Any, ...], results: tuple[torch.Tensor | None, ...]) -> Any:
        like = args[0]
        if not isinstance(like, torch.Tensor):
            kind = type(like).__name__
            raise TypeError(f"{self._name}: {self._inputs[0]} must be a tensor, got {kind}")
        looks = self._looks(*args)
        return tuple(
            look.new(like) if output is None and look.asked_for else output
            for look, output in zip(looks, results, strict=False)
        )
