"""Calls every operator of an installed tilewise once and checks the results; tools/check_wheel.py runs it.

All keys of a call are one row v, so attention must give v back, whatever the queries are.
"""

from __future__ import annotations

import platform

import flash_mla
import tilewise
import torch

HEADS, TOKENS, ROWS, GROUPS = 4, 3, 8, 2

ops = torch.ops.tilewise
called: set[str] = set()


def call(name: str, *args: object, **kwargs: object) -> object:
    called.add(name)
    return getattr(ops, name)(*args, **kwargs)


def check(name: str, got: torch.Tensor, expected: torch.Tensor, tolerance: float = 0.0) -> None:
    expected = expected.expand(got.shape).float()
    error = (got.float() - expected).abs().max().item()
    if not error <= tolerance:
        raise SystemExit(f"{name}: error {error}, at most {tolerance} expected")


def unpack_fp8(out_fp8: torch.Tensor, out_sf: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, 512] from the grouped and scaled form."""
    size = HEADS // GROUPS
    values = out_fp8.float().view(TOKENS, GROUPS, 16, size, 32)
    exponents = out_sf.contiguous().view(torch.uint8).float().view(TOKENS, GROUPS, 16, size, 1)
    return (values * torch.exp2(exponents - 127)).permute(0, 1, 3, 2, 4).reshape(TOKENS, HEADS, 512)


def check_flash_mla(
    q: torch.Tensor,
    rows: torch.Tensor,
    pages: torch.Tensor,
    lists: torch.Tensor,
    v: torch.Tensor,
    row: torch.Tensor,
) -> None:
    """The same through the packages' functions."""
    schedule, splits = flash_mla.get_mla_metadata()
    out, _ = flash_mla.flash_mla_with_kvcache(
        q[None], pages, None, None, 512, schedule, splits, is_fp8_kvcache=True, indices=lists[None]
    )
    check("flash_mla_with_kvcache", out, row, 2**-7)
    out, *_ = flash_mla.flash_mla_sparse_fwd(q, rows[:, None], lists[:, None], 0.05)
    check("flash_mla_sparse_fwd", out, v, 2**-7)
    out, _ = tilewise.sparse_decode(q[None], pages, lists[None], 0.05)
    check("tilewise.sparse_decode", out, row, 2**-7)


def check_training(v: torch.Tensor) -> None:
    """All values of a call are one row: attention gives it back, and no score matters to the loss."""
    ends, ones = (
        torch.tensor([0, ROWS], dtype=torch.int32),
        torch.ones(ROWS, HEADS, 128, dtype=torch.bfloat16),
    )
    q, k = torch.randn(2, ROWS, HEADS, 192).to(torch.bfloat16)
    values = v[:128].expand(ROWS, HEADS, 128).contiguous()
    lengths = (ends, ends, ROWS, ROWS, 0.05)
    block = call("expand_block_selection", torch.zeros(1, 1, dtype=torch.int32), 1)
    row_ptr, q_blocks = call("invert_block_selection", block, 1)
    check("invert_block_selection", row_ptr, torch.tensor([0, 1]))
    check("invert_block_selection", q_blocks, torch.tensor([0]))
    for name, lists in (("dense_prefill", ()), ("block_sparse_prefill", (block,))):
        out, lse = call(f"{name}_fwd", q, k, values, *lists, *lengths)
        check(f"{name}_fwd", out, v[:128], 2**-7)
        again, _ = call(f"{name}_fwd_no_grad", q, k, values, *lists, *lengths)
        check(f"{name}_fwd_no_grad", again, out)
        dq, dk, dv, _ = call(f"{name}_bwd", ones, q, k, values, out, lse, *lists, *lengths)
        check(f"{name}_bwd", dq, torch.zeros(1), 2**-4)
        check(f"{name}_bwd", dk, torch.zeros(1), 2**-4)
        check(f"{name}_bwd", dv.float().sum(0), torch.full((1,), float(ROWS)), 2**-2)

    leaf = q.clone().requires_grad_()
    out, _ = flash_mla.flash_attn_varlen_func(leaf, k, values, *lengths[:4], causal=True)
    out.sum().backward()
    check("flash_attn_varlen_func", leaf.grad, torch.zeros(1), 2**-4)


def main() -> None:
    v = torch.linspace(-1, 1, 512).to(torch.bfloat16)
    rows = v.expand(ROWS, 512).contiguous()
    q = torch.randn(TOKENS, HEADS, 512).to(torch.bfloat16)
    lists = torch.arange(TOKENS * 4, dtype=torch.int32).view(TOKENS, 4) % ROWS

    pages = call("quantize_kv", rows, "v4_fp8", 4)
    back = call("dequantize_kv", pages, "v4_fp8")
    check("quantize_kv", back, v, 2**-4)
    cache = torch.zeros_like(pages)
    call("append_kv", rows, cache, torch.arange(ROWS, dtype=torch.int32))
    check("append_kv", cache, pages)
    row = back[0]

    one = torch.zeros(1, 1, dtype=torch.int32)
    lengths = torch.full((1,), 4, dtype=torch.int32)
    out, _ = call("dense_decode", q[None], rows.view(2, 4, 1, 512), one, lengths, 0.05)
    check("dense_decode", out, v, 2**-7)
    out, _ = call("sparse_decode", q[None], pages, lists[None], 0.05)
    check("sparse_decode", out, row, 2**-7)
    out, _, lse, _ = call("sparse_prefill_fwd", q, rows[:, None], lists[:, None], 0.05)
    check("sparse_prefill_fwd", out, v, 2**-7)
    again, *_ = call("sparse_prefill_fwd_no_grad", q, rows[:, None], lists[:, None], 0.05)
    check("sparse_prefill_fwd_no_grad", again, out)
    ones = torch.ones_like(out)
    dq, dkv, *_ = call("sparse_prefill_bwd", ones, q, rows[:, None], out, lse, lists[:, None], 0.05)
    check("sparse_prefill_bwd", dq, torch.zeros(1), 2**-4)
    check("sparse_prefill_bwd", dkv.float().sum(0), torch.full((1,), float(TOKENS * HEADS)), 2**-2)
    check_training(v)

    places = torch.arange(TOKENS, dtype=torch.int32)
    still = torch.cat([torch.ones(TOKENS, 32), torch.zeros(TOKENS, 32)], dim=1)
    settings = (places, still, 0.05, GROUPS, 1e-6)
    out_fp8, out_sf, *_ = call("fused_prefill", q, rows[:, None], lists[:, None], *settings)
    check("fused_prefill", unpack_fp8(out_fp8, out_sf), v, 2**-4)
    out_fp8, out_sf, _ = call("fused_decode", q, pages, lists, *settings)
    check("fused_decode", unpack_fp8(out_fp8, out_sf), row, 2**-4)
    o_accum, lse_accum = call("fused_decode_partials", q, pages, lists, *settings, num_splits=2)
    out_fp8, out_sf, _ = call("combine_partials_fused", o_accum, lse_accum, None, True, GROUPS)
    check("combine_partials_fused", unpack_fp8(out_fp8, out_sf), row, 2**-4)
    out, _ = call("combine_partials", o_accum, lse_accum, None, True)
    check("combine_partials", out, row, 2**-7)

    weight = torch.randn(HEADS * 16, 128).to(torch.float8_e4m3fn)
    scales = torch.arange(HEADS * 16, dtype=torch.int32)[:, None]
    moved, moved_scales = call("permute_q_b_proj", weight, scales, HEADS, 16)
    check("permute_q_b_proj", moved, weight)
    check("permute_q_b_proj", moved_scales, scales)
    weight = torch.randn(1, 2, 512).to(torch.float8_e4m3fn)
    scales = torch.arange(8, dtype=torch.int32).view(1, 2, 4)
    moved, moved_scales = call("permute_wv_proj", weight, scales, 1, 512)
    check("permute_wv_proj", moved, weight)
    check("permute_wv_proj", moved_scales, scales)

    call("set_num_threads", 1)
    if call("get_num_threads") != 1:
        raise SystemExit("get_num_threads: the number set was not kept")
    call("set_num_threads", 0)
    call("noop", v)
    out, *_ = torch.ops._flashmla_C.sparse_decode_fwd(
        q[None], pages, lists[None], None, None, None, None, None, None, None, 512, 0.05
    )
    check("_flashmla_C.sparse_decode_fwd", out, row, 2**-7)

    check_flash_mla(q, rows, pages, lists, v, row)

    prefix = "tilewise::"
    names = torch._C._dispatch_get_all_op_names()
    known = {name.removeprefix(prefix).partition(".")[0] for name in names if name.startswith(prefix)}
    if known != called:
        raise SystemExit(f"not called: {sorted(known - called)}")
    print(f"tilewise {tilewise.__version__} from {tilewise.__file__}, flash_mla from {flash_mla.__file__}")
    print(f"torch {torch.__version__}, Python {platform.python_version()}: {len(called)} operators work")


if __name__ == "__main__":
    main()
