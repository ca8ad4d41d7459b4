"""Q norm, Q RoPE, sparse attention, inverse RoPE and the FP8 cast in one call, as FlashMLA's callers call it.

The layouts of q and of the outputs, and what every step computes: docs/operators.md, section 7. Everything is
checked before anything is written. Calls for the prefill tokens and for the decode tokens of one step may
write into one pair of buffers (docs/flash-mla.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import tilewise
import torch
from tilewise import _ops

from flash_mla._arguments import record_pair, tensor_pair
from flash_mla._errors import describe, named_errors

__all__ = ["decode", "permute_q_b_proj", "permute_wv_proj", "prefill"]

_HEAD_SIZE = 512
_SETTINGS = {
    "is_rope_neox_style": False,
    "rope_dim": 64,
    "num_per_channels": 32,
    "use_tma_aligned_col_major_sf": True,
    "round_sf": True,
    "use_packed_ue8m0": True,
    "d_v": _HEAD_SIZE,
}
_NAMES = {"softmax_scale": "sm_scale", "n_groups": "n_wv_group", "q_norm_eps": "rms_norm_eps"}

Pair = Sequence[torch.Tensor]
Looks = tuple[_ops.Look, ...]


def _check_settings(function: str, *values: object) -> None:
    """`values` in the order of _SETTINGS."""
    for (name, expected), value in zip(_SETTINGS.items(), values, strict=True):
        if value != expected:
            raise ValueError(f"{function}: {name} must be {expected}, got {describe(value)}")


def _outputs(
    function: str, out: Pair | None, out_fp8: torch.Tensor | None, out_sf: torch.Tensor | None
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The caller's out_fp8 and out_sf, however they were given."""
    if out is None:
        return out_fp8, out_sf
    pair = tensor_pair(function, "out", "(out_fp8, out_sf)", out)
    for name, tensor in (("out_fp8", out_fp8), ("out_sf", out_sf)):
        if tensor is not None:
            raise ValueError(f"{function}: {name} must be left out with out, got {describe(tensor)}")
    return pair


@named_errors(("fused_prefill",), _NAMES)
def prefill(
    enable_q_norm: bool,
    rms_norm_eps: float,
    token_positions: torch.Tensor,
    is_rope_neox_style: bool,
    rope_dim: int,
    cos_sin_cache: torch.Tensor,
    n_wv_group: int,
    num_per_channels: int,
    use_tma_aligned_col_major_sf: bool,
    round_sf: bool,
    use_packed_ue8m0: bool,
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int = _HEAD_SIZE,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    out: Pair | None = None,
    *,
    out_fp8: torch.Tensor | None = None,
    out_sf: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Over the listed rows of a bfloat16 tensor.

    Args:
        enable_q_norm: divides each head of q by its root mean square.
        rms_norm_eps: added to the mean square; unused without the norm.
        token_positions: int32 [s_q], rows of cos_sin_cache; clamped to them.
        is_rope_neox_style: False.
        rope_dim: 64.
        cos_sin_cache: float32 [max_pos, 64], 32 cosines and then 32 sines.
        n_wv_group: groups of heads in the output; a divisor of h_q.
        num_per_channels: 32.
        use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0: True.
        q: bfloat16 [s_q, h_q, 512] in the order that `permute_q_b_proj` gives, before its rotation.
        kv: bfloat16 [s_kv, 1, 512], already rotated.
        indices: int32 [s_q, 1, topk]; entries outside 0 .. s_kv - 1 are skipped.
        sm_scale: factor of the scores.
        d_v: 512.
        attn_sink: float32 [h_q]: the output is multiplied by exp(lse) / (exp(lse) + exp(sink)).
        topk_length: int32 [s_q]: how many entries of a list count, from its front.
        out: the pair (out_fp8, out_sf), written and returned. A token range of larger buffers will do.
        out_fp8, out_sf: the same, each alone or both; not together with `out`.

    Returns:
        out_fp8 float8_e4m3fn [s_q, n_wv_group, h_q / n_wv_group * 512], its scales out_sf int32
        [s_q, n_wv_group, h_q / n_wv_group * 4] with the tokens contiguous, max_logits and lse, both float32
        [s_q, h_q], natural logarithm.

    Raises:
        TypeError, ValueError: refused here. RuntimeError: refused by the operator.

    Source: docs/operators.md, section 7.
    """
    _check_settings(
        "prefill",
        is_rope_neox_style,
        rope_dim,
        num_per_channels,
        use_tma_aligned_col_major_sf,
        round_sf,
        use_packed_ue8m0,
        d_v,
    )
    out_fp8, out_sf = _outputs("prefill", out, out_fp8, out_sf)
    return tilewise.fused_prefill(
        q,
        kv,
        indices,
        token_positions,
        cos_sin_cache,
        sm_scale,
        n_wv_group,
        rms_norm_eps if enable_q_norm else None,
        topk_length,
        attn_sink,
        out_fp8=out_fp8,
        out_sf=out_sf,
    )


def _check_unwritten(out_fp8: torch.Tensor | None, out_sf: torch.Tensor | None, looks: Looks) -> None:
    """Refuses outputs that the merge would refuse, though split mode returns them as they came."""
    for name, tensor, look in (("out_fp8", out_fp8, looks[0]), ("out_sf", out_sf, looks[1])):
        if tensor is not None and (tensor.dtype != look.dtype or tuple(tensor.shape) != look.shape):
            expected = f"{str(look.dtype).removeprefix('torch.')} {list(look.shape)}"
            raise ValueError(f"decode: {name} must be {expected}, got {describe(tensor)}")
    if out_fp8 is not None and not out_fp8.is_contiguous():
        raise ValueError(f"decode: out_fp8 must be contiguous, got strides {list(out_fp8.stride())}")
    if out_sf is not None and out_sf.numel() > 0 and not _tokens_contiguous(out_sf):
        raise ValueError(
            "decode: out_sf must be of strides (1, at least the columns' extent, at least s_q), "
            f"got strides {list(out_sf.stride())}"
        )


def _tokens_contiguous(out_sf: torch.Tensor) -> bool:
    tokens, groups, columns = out_sf.shape
    token_step, group_step, column_step = out_sf.stride()
    return (
        (tokens == 1 or token_step == 1)
        and (columns == 1 or column_step >= tokens)
        and (groups == 1 or group_step >= columns * column_step)
    )


def _check_splits(
    mega_num_splits: int, mega_o_accum: torch.Tensor | None, mega_lse_accum: torch.Tensor | None
) -> None:
    if mega_o_accum is None and mega_lse_accum is not None:
        raise ValueError("decode: mega_o_accum must be given with mega_lse_accum, got nothing")
    if mega_lse_accum is None and mega_o_accum is not None:
        raise ValueError("decode: mega_lse_accum must be given with mega_o_accum, got nothing")
    if mega_o_accum is None and mega_num_splits != 1:
        raise ValueError(
            f"decode: mega_num_splits must be 1 without mega_o_accum, got {describe(mega_num_splits)}"
        )


@named_errors(
    ("fused_decode", "fused_decode_partials"),
    {
        **_NAMES,
        "kv_cache": "k_cache",
        "indices": "indices_in_kvcache",
        "extra_cache": "extra_k_cache",
        "extra_indices": "extra_indices_in_kvcache",
        "record must": "kv_format must",
        "extra_record must": "kv_format must",
        "num_splits": "mega_num_splits",
        "o_accum": "mega_o_accum",
        "lse_accum": "mega_lse_accum",
    },
)
def decode(
    enable_q_norm: bool,
    rms_norm_eps: float,
    token_positions: torch.Tensor,
    is_rope_neox_style: bool,
    rope_dim: int,
    cos_sin_cache: torch.Tensor,
    n_wv_group: int,
    num_per_channels: int,
    use_tma_aligned_col_major_sf: bool,
    round_sf: bool,
    use_packed_ue8m0: bool,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    indices_in_kvcache: torch.Tensor,
    sm_scale: float,
    d_v: int = _HEAD_SIZE,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    extra_k_cache: torch.Tensor | None = None,
    extra_indices_in_kvcache: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
    out: Pair | None = None,
    mega_num_splits: int = 1,
    mega_o_accum: torch.Tensor | None = None,
    mega_lse_accum: torch.Tensor | None = None,
    *,
    out_fp8: torch.Tensor | None = None,
    out_sf: torch.Tensor | None = None,
    kv_format: str | Sequence[str | None] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Over the listed rows of a paged cache, and of a second one.

    Args:
        enable_q_norm ... use_packed_ue8m0, q, sm_scale, d_v, attn_sink, out, out_fp8, out_sf: as in
            `prefill`.
        k_cache: [num_blocks, page, 1, bytes] of a record of docs/kv-formats.md of head size 512 (uint8, int8
            or float8_e4m3fn) or bfloat16 [num_blocks, page, 1, 512].
        indices_in_kvcache: int32 [s_q, topk], `block * page + offset` of each key; others are skipped.
        extra_k_cache, extra_indices_in_kvcache: a second cache, with a page size of its own, and
            int32 [s_q, extra_topk] into it; one softmax over both.
        topk_length, extra_topk_length: int32 [s_q]: how many entries of a list count, from its front.
        mega_num_splits: parts that the keys are divided into; 1 without the two tensors below.
        mega_o_accum, mega_lse_accum: float32 [mega_num_splits, s_q, h_q, 512] and
            [mega_num_splits, s_q, h_q], both or neither. Given, the parts' results are written there, rotated
            back, lse to base 2, without the sink: `tilewise.combine_partials_fused(..., base2=True)` merges
            them. out_fp8, out_sf and lse are then returned unwritten.
        kv_format: the record of k_cache, or a pair (k_cache's, extra_k_cache's), by name. What has no name is
            found by its bytes, which tells all records but `v32_nope_fp8`, `v41_fp8_row`, `v41_fp4_row`.

    Returns:
        out_fp8 and out_sf as in `prefill`, and lse float32 [s_q, h_q], natural logarithm.

    Raises:
        TypeError, ValueError: refused here. RuntimeError: refused by the operator.

    Source: docs/operators.md, section 7.
    """
    _check_settings(
        "decode",
        is_rope_neox_style,
        rope_dim,
        num_per_channels,
        use_tma_aligned_col_major_sf,
        round_sf,
        use_packed_ue8m0,
        d_v,
    )
    out_fp8, out_sf = _outputs("decode", out, out_fp8, out_sf)
    _check_splits(mega_num_splits, mega_o_accum, mega_lse_accum)
    record, extra_record = record_pair("decode", kv_format)
    args = (
        q,
        k_cache,
        indices_in_kvcache,
        token_positions,
        cos_sin_cache,
        sm_scale,
        n_wv_group,
        rms_norm_eps if enable_q_norm else None,
        record,
        topk_length,
        extra_k_cache,
        extra_indices_in_kvcache,
        extra_topk_length,
        extra_record,
        attn_sink,
    )
    if mega_o_accum is None:
        return tilewise.fused_decode(*args, out_fp8=out_fp8, out_sf=out_sf)

    looks = _ops.OUTPUTS["fused_decode"](*args)
    _check_unwritten(out_fp8, out_sf, looks)
    tilewise.fused_decode_partials(*args, mega_num_splits, o_accum=mega_o_accum, lse_accum=mega_lse_accum)
    unwritten = (out_fp8, out_sf, None)
    out_fp8, out_sf, lse = (
        look.new(q) if tensor is None else tensor for look, tensor in zip(looks, unwritten, strict=True)
    )
    return out_fp8, out_sf, lse


_WEIGHT_PARTS = "(weight, scales)"
_WEIGHT_NAMES = {"weight must": "weight_and_sf[0] must", "scales must": "weight_and_sf[1] must"}


@named_errors(("permute_q_b_proj",), _WEIGHT_NAMES)
def permute_q_b_proj(weight_and_sf: Pair, h_q: int, d_q: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Reorders the rows of the projection to q as `prefill` and `decode` read q; done once, at load.

    Args:
        weight_and_sf: the pair of the weight, float8_e4m3fn [h_q * d_q, r], and its scales,
            int32 [h_q * d_q, r / granularity / 4], column-major, granularity 32 or 128.
        h_q: heads.
        d_q: channels of a head.

    Returns:
        The pair, reordered; the scales with strides (1, h_q * d_q rounded up to a multiple of 4).

    Raises:
        TypeError: refused here. RuntimeError: refused by the operator.

    Source: docs/operators.md, section 7.
    """
    weight, scales = tensor_pair("permute_q_b_proj", "weight_and_sf", _WEIGHT_PARTS, weight_and_sf)
    return tilewise.permute_q_b_proj(weight, scales, h_q, d_q)


@named_errors(("permute_wv_proj",), {**_WEIGHT_NAMES, "group_size": "wv_group_size"})
def permute_wv_proj(weight_and_sf: Pair, wv_group_size: int, d_o: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Reorders the columns of the projection that reads out_fp8, with their scales; done once, at load.

    Args:
        weight_and_sf: the pair of the weight, float8_e4m3fn [groups, n, wv_group_size * d_o], and its scales,
            int32 [groups, n, wv_group_size * d_o / 128], both contiguous.
        wv_group_size: heads in a group, h_q / n_wv_group.
        d_o: 512.

    Returns:
        The pair, reordered.

    Raises:
        TypeError: refused here. RuntimeError: refused by the operator.

    Source: docs/operators.md, section 7.
    """
    weight, scales = tensor_pair("permute_wv_proj", "weight_and_sf", _WEIGHT_PARTS, weight_and_sf)
    return tilewise.permute_wv_proj(weight, scales, wv_group_size, d_o)
