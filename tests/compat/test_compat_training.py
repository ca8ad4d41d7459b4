"""flash_attn_varlen_*, block_sparse_*, flash_mla_sparse_bwd: what they compute, and where gradients go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flash_mla
import oracle
import pytest
import tilewise
import torch
import training_oracle
from ops_calls import HEADS, K_ENDS, Q_ENDS, assert_same_bits, bf16, bits, fp32, i32, selection
from torch import Tensor
from training_calls import (
    ENDS,
    Kwargs,
    blocks,
    blocks_backward,
    kvpacked,
    qkvpacked,
    tokens,
    tokens_backward,
    varlen,
)

OFF = (-1, -1)
SINK = fp32(HEADS)
WINDOWS: dict[str, tuple[Any, tuple[int, int]]] = {
    "pair": ((20, 3), (20, 3)),
    "list": ([20, 0], (20, 0)),
    "None": (None, OFF),
    "number": (21, (20, 0)),
    "own key alone": (1, (0, 0)),
    "zero": (0, OFF),
    "negative": (-1, OFF),
    "very negative": (-100, OFF),
}
each_window = pytest.mark.parametrize(("window_size", "window"), WINDOWS.values(), ids=WINDOWS.keys())


def dense_native(call: Kwargs, causal: bool = False, window: Any = OFF, scale: float | None = None) -> Any:
    q, k, v = call["q"], call["k"], call["v"]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return tilewise.dense_prefill_fwd(
        q, k, v, Q_ENDS, K_ENDS, 90, 100, scale, causal, window, call.get("sink_bias")
    )


def leaves_of(call: Kwargs, *names: str) -> tuple[Kwargs, list[Tensor]]:
    changed = {**call, **{name: call[name].clone().requires_grad_() for name in names}}
    return changed, [changed[name] for name in names]


def gradients_of(
    function: Callable[..., tuple[Tensor, ...]], call: Kwargs, *names: str
) -> tuple[Tensor, ...]:
    """out, lse, and the gradients of some arguments."""
    changed, leaves = leaves_of(call, *names)
    out, lse = function(**changed)
    assert out.requires_grad and not lse.requires_grad
    found = torch.autograd.grad(out, leaves, bf16(*out.shape, seed=9))
    return out.detach(), lse, *found


# ---- whole sequences --------------------------------------------------------------------------------------


@pytest.mark.parametrize("d_qk", [192, 128, 64])
@pytest.mark.parametrize("causal", [True, False])
def test_varlen_is_the_native_operator(d_qk: int, causal: bool) -> None:
    call = varlen(d_qk)
    assert_same_bits(flash_mla.flash_attn_varlen_func(**call, causal=causal), dense_native(call, causal))


@each_window
def test_windows_of_varlen(window_size: Any, window: tuple[int, int]) -> None:
    call = varlen()
    got = flash_mla.flash_attn_varlen_func(**call, window_size=window_size)
    assert_same_bits(got, dense_native(call, window=window))


def test_arguments_of_varlen_by_position() -> None:
    call = varlen()
    got = flash_mla.flash_attn_varlen_func(*call.values(), 0.0, 0.05, True, True, False, (20, 0), SINK)
    expected = dense_native({**call, "sink_bias": SINK}, True, (20, 0), 0.05)
    assert_same_bits(got, expected)


@pytest.mark.parametrize("change", [{"deterministic": True}, {"is_varlen": False}])
def test_settings_of_varlen_that_change_nothing(change: Kwargs) -> None:
    names = ("q", "k", "v")
    expected = gradients_of(flash_mla.flash_attn_varlen_func, varlen(), *names)
    assert_same_bits(gradients_of(flash_mla.flash_attn_varlen_func, varlen(**change), *names), expected)


def test_varlen_against_double_precision() -> None:
    call = varlen(192, sink_bias=SINK)
    function = flash_mla.flash_attn_varlen_func
    out, lse, *found = gradients_of(
        lambda **changed: function(**changed, causal=True, window_size=50), call, "q", "k", "v", "sink_bias"
    )

    def reference(q: Tensor, k: Tensor, v: Tensor, sink: Tensor) -> tuple[Tensor, Tensor]:
        ends = (Q_ENDS.tolist(), K_ENDS.tolist())
        return training_oracle.varlen(q, k, v, *ends, 192**-0.5, True, (49, 0), sink)

    tensors = [call["q"], call["k"], call["v"], SINK]
    exact = training_oracle.both(reference, tensors, bf16(*out.shape, seed=9))
    training_oracle.assert_all_close(("out", "dq", "dk", "dv", "d_sink"), [out, *found], exact)
    oracle.assert_logs(lse, reference(*(t.double() for t in tensors))[1])


# ---- packed tensors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("d_qk", [192, 128, 64])
def test_qkvpacked(d_qk: int) -> None:
    call = qkvpacked(d_qk)
    q, k, v = (x.contiguous() for x in call["qkv"].split([d_qk, d_qk, min(d_qk, 128)], -1))
    apart = {
        "q": q,
        "k": k,
        "v": v,
        "cu_seqlens_qo": ENDS,
        "cu_seqlens_kv": ENDS,
        "max_seqlen_qo": 90,
        "max_seqlen_kv": 90,
    }
    options = {"causal": True, "window_size": 40}
    expected = gradients_of(flash_mla.flash_attn_varlen_func, {**apart, **options}, "q", "k", "v")
    got = gradients_of(flash_mla.flash_attn_varlen_qkvpacked_func, {**call, **options}, "qkv")
    assert_same_bits(got, (*expected[:2], torch.cat(expected[2:], -1)))


@pytest.mark.parametrize("d_qk", [192, 128, 64])
def test_kvpacked(d_qk: int) -> None:
    options = {"window_size": (30, 2), "softmax_scale": 0.06}
    expected = gradients_of(flash_mla.flash_attn_varlen_func, {**varlen(d_qk), **options}, "q", "k", "v")
    got = gradients_of(flash_mla.flash_attn_varlen_kvpacked_func, {**kvpacked(d_qk), **options}, "q", "kv")
    assert_same_bits(got, (*expected[:3], torch.cat(expected[3:], -1)))


def test_packed_arguments_by_position() -> None:
    call = qkvpacked()
    got = flash_mla.flash_attn_varlen_qkvpacked_func(*call.values(), 0.0, 0.05, True, False, True, 9)
    expected = flash_mla.flash_attn_varlen_qkvpacked_func(
        **call, softmax_scale=0.05, causal=True, window_size=(8, 0)
    )
    assert_same_bits(got, expected)
    call = kvpacked()
    order = ("q", "kv", "cu_seqlens_qo", "cu_seqlens_kv", "max_seqlen_qo", "max_seqlen_kv", "head_dim_qk")
    got = flash_mla.flash_attn_varlen_kvpacked_func(
        *(call[name] for name in order), 0.0, 0.05, True, False, True, None
    )
    expected = flash_mla.flash_attn_varlen_kvpacked_func(**call, softmax_scale=0.05, causal=True)
    assert_same_bits(got, expected)


# ---- selected blocks --------------------------------------------------------------------------------------


def blocks_native(call: Kwargs, window: tuple[int, int] = OFF) -> tuple[Tensor, Tensor]:
    ends = i32(0, 300)
    sizes = (call.get("q_block_size", 256), call.get("kv_block_size", 128))
    tensors = (call["q"], call["k"], call["v"], call["q2k_blocks"])
    out, lse = tilewise.block_sparse_prefill_fwd(
        *tensors, ends, ends, 300, 300, call["sm_scale"], *sizes, True, window, call.get("attn_sink")
    )
    return out, lse.t().contiguous()


BLOCKS: dict[str, Kwargs] = {
    "192": blocks(),
    "128": blocks(128),
    "per head and sink": blocks(q2k_blocks=selection(HEADS), attn_sink=SINK),
    "bfloat16 sink": blocks(attn_sink=SINK.bfloat16()),
    "no selection": blocks(q2k_blocks=None),
    "large blocks": blocks(q2k_blocks=i32(0, -1, 1, 0).view(2, 2), q_block_size=256, kv_block_size=128),
}
each_blocks = pytest.mark.parametrize("call", BLOCKS.values(), ids=BLOCKS.keys())


@each_blocks
def test_blocks_are_the_native_operator(call: Kwargs) -> None:
    o, lse = flash_mla.block_sparse_prefill_fwd(**call)
    assert lse.shape == (HEADS, 300) and lse.is_contiguous()
    assert_same_bits((o, lse), blocks_native(call))


def test_default_sizes_of_blocks() -> None:
    call = blocks(q2k_blocks=i32(0, -1, 1, 0).view(2, 2))
    del call["q_block_size"], call["kv_block_size"]
    order = ("q", "k", "v", "q2k_blocks", "sm_scale")
    got = flash_mla.block_sparse_prefill_fwd(*(call[name] for name in order), SINK)
    assert_same_bits(got, blocks_native({**call, "attn_sink": SINK}))


@each_window
def test_windows_of_blocks(window_size: Any, window: tuple[int, int]) -> None:
    if window[1] > 0:
        window_size = window = (window[0], 0)
    call = blocks()
    got = flash_mla.block_sparse_prefill_fwd(**call, window_size=window_size)
    assert_same_bits(got, blocks_native(call, window))
    back = blocks_backward({**call, "window_size": window_size})
    expected = flash_mla.block_sparse_prefill_bwd(**{**back, "window_size": window})
    assert_same_bits(flash_mla.block_sparse_prefill_bwd(**back)[:3], expected[:3])


@each_blocks
def test_gradients_of_blocks_against_double_precision(call: Kwargs) -> None:
    back = blocks_backward(call)
    found = flash_mla.block_sparse_prefill_bwd(**back)
    sink = call.get("attn_sink")
    assert len(found) == 4 and (found[3] is None) == (sink is None)

    def reference(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        sizes = (call["q2k_blocks"], call["q_block_size"], call["kv_block_size"])
        return training_oracle.varlen(q, k, v, [0, 300], [0, 300], 0.07, True, OFF, bias, *sizes)

    tensors = [call["q"], call["k"], call["v"], sink]
    exact = training_oracle.both(reference, tensors, back["do_grad"])
    got = [back["o"], *(t for t in found if t is not None)]
    names = ("out", "dq", "dk", "dv", "d_sink")[: len(got)]
    training_oracle.assert_all_close(names, got, exact)


def test_lse_of_blocks_by_head_or_by_token() -> None:
    back = blocks_backward(blocks(attn_sink=SINK))
    expected = flash_mla.block_sparse_prefill_bwd(**back)
    for lse in (back["lse"].t(), back["lse"].t().contiguous()):
        assert_same_bits(flash_mla.block_sparse_prefill_bwd(**{**back, "lse": lse}), expected)


def test_backward_of_blocks_by_position() -> None:
    back = blocks_backward(blocks(attn_sink=SINK, window_size=70))
    order = ("q", "k", "v", "o", "do_grad", "lse", "q2k_blocks", "sm_scale")
    order += ("window_size", "kv_block_size", "q_block_size", "attn_sink")
    got = flash_mla.block_sparse_prefill_bwd(*(back[name] for name in order), deterministic=False)
    assert_same_bits(got, flash_mla.block_sparse_prefill_bwd(**back))


def test_a_selection_for_the_forward_serves_the_backward_expanded() -> None:
    call = blocks(q2k_blocks=i32(0, -1, 1, 0).view(2, 2), q_block_size=256, kv_block_size=128)
    back = blocks_backward(call)
    fine = flash_mla.expand_block_selection(call["q2k_blocks"], 4)
    assert fine.tolist() == [[0, -1]] * 4 + [[1, 0]] * 4
    found = flash_mla.block_sparse_prefill_bwd(**{**back, "q2k_blocks": fine, "q_block_size": 64})
    for one, other in zip(found[:3], flash_mla.block_sparse_prefill_bwd(**back)[:3], strict=True):
        assert torch.allclose(one.float(), other.float(), rtol=0.02, atol=0.02)


# ---- listed tokens ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sink", [None, SINK, SINK.half()])
@pytest.mark.parametrize("fuse", [True, False])
def test_sparse_bwd_is_the_native_operator(sink: Tensor | None, fuse: bool) -> None:
    call = tokens()
    lists = (call["indices"], 0.05, 512, i32(2, 6, 0, 9, 5))
    out, _, lse = tilewise.sparse_prefill_fwd(
        call["q"], call["kv"], *lists[:3], topk_length=lists[3], sink_bias=sink
    )
    do_grad = bf16(*out.shape, seed=9)
    got = flash_mla.flash_mla_sparse_bwd(
        call["q"],
        call["kv"],
        out,
        do_grad,
        call["indices"],
        lse / torch.tensor(2.0).log(),
        None,
        None,
        0.05,
        512,
        fuse,
        topk_length=lists[3],
        sink_bias=sink,
    )
    dq, dkv, *d_sink, target = tilewise.sparse_prefill_bwd(
        do_grad, call["q"], call["kv"], out, lse, *lists, sink, kl_target=True
    )
    expected = (dq, dkv, *((target,) if fuse else ()), *d_sink)
    assert [(t.dtype, t.shape) for t in got] == [(t.dtype, t.shape) for t in expected]
    # The other base costs a rounding of lse.
    for one, other in zip(got, expected, strict=True):
        assert torch.allclose(one.float(), other.float(), rtol=0.01, atol=1e-4)


def test_workspaces_may_hold_anything() -> None:
    call = tokens_backward()
    expected = flash_mla.flash_mla_sparse_bwd(**call)
    sizes = {"dq_acc_workspace": 5 * HEADS * 576, "dkv_acc_workspace": 9 * 576}
    for shape in (lambda n: (n,), lambda n: (1, n + 3), lambda n: (2, n // 2, 1)):
        spaces = {name: torch.full(shape(n), float("nan")) for name, n in sizes.items()}
        assert_same_bits(flash_mla.flash_mla_sparse_bwd(**{**call, **spaces}), expected)
        assert all(space.isnan().all() for space in spaces.values())


# ---- FlashMLA's own way to gradients, and torch.compile --------------------------------------------------


class TokenAttention(torch.autograd.Function):
    """As training code around FlashMLA has it."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, kv: Tensor, indices: Tensor) -> Tensor:
        out, _, lse = flash_mla.flash_mla_sparse_fwd(q, kv, indices, 0.05)
        ctx.save_for_backward(q, kv, out, indices, lse * 1.4426950408889634)
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, kv, out, indices, lse = ctx.saved_tensors
        found = flash_mla.flash_mla_sparse_bwd(q, kv, out, d_out, indices, lse, None, None, 0.05)
        return *found[:2], None


class BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, lists: Tensor) -> Tensor:
        sizes = {"q_block_size": 64, "kv_block_size": 64}
        o, lse = flash_mla.block_sparse_prefill_fwd(q, k, v, lists, 0.07, **sizes)
        ctx.save_for_backward(q, k, v, o, lse, lists)
        return o

    @staticmethod
    def backward(ctx: Any, do_grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, o, lse, lists = ctx.saved_tensors
        found = flash_mla.block_sparse_prefill_bwd(q, k, v, o, do_grad, lse, lists, 0.07, kv_block_size=64)
        return *found[:3], None


def test_custom_functions_around_forward_and_backward() -> None:
    call, leaves = leaves_of(tokens(), "q", "kv")
    out = TokenAttention.apply(*leaves, call["indices"])
    found = torch.autograd.grad(out, leaves, bf16(*out.shape, seed=9))
    native = tilewise.sparse_prefill_fwd(*leaves, call["indices"], 0.05)[0]
    expected = torch.autograd.grad(native, leaves, bf16(*out.shape, seed=9))
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one.float(), other.float(), rtol=0.01, atol=1e-3)

    call, leaves = leaves_of(blocks(), "q", "k", "v")
    out = BlockAttention.apply(*leaves, call["q2k_blocks"])
    found = torch.autograd.grad(out, leaves, bf16(*out.shape, seed=9))
    assert_same_bits(found, flash_mla.block_sparse_prefill_bwd(**blocks_backward(blocks()))[:3])


def test_compiled_functions_give_equal_bits() -> None:
    torch._dynamo.reset()

    def layer(qkv: Tensor, q: Tensor, kv: Tensor, sink: Tensor) -> tuple[Tensor, ...]:
        out, lse = flash_mla.flash_attn_varlen_qkvpacked_func(qkv, ENDS, 90, 192, causal=True, window_size=30)
        k, v = kv.split([192, 128], -1)
        more, _ = flash_mla.flash_attn_varlen_func(q, k, v, Q_ENDS, K_ENDS, 90, 100, sink_bias=sink)
        return out, more, lse

    def run(function: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        call = kvpacked()
        tensors = (qkvpacked()["qkv"], call["q"], call["kv"], SINK)
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        results = function(*leaves)
        d_outs = [bf16(*out.shape, seed=9) for out in results[:2]]
        return *(t.detach() for t in results), *torch.autograd.grad(results[:2], leaves, d_outs)

    assert_same_bits(run(torch.compile(layer, fullgraph=True)), run(layer))


def test_order_of_a_selection_changes_no_bit() -> None:
    call = blocks()
    shuffled = {**call, "q2k_blocks": call["q2k_blocks"].flip(-1)}
    got = flash_mla.block_sparse_prefill_fwd(**shuffled)
    assert torch.equal(bits(got[0]), bits(flash_mla.block_sparse_prefill_fwd(**call)[0]))
