"""Weights in the order that the fused operators want; done once, when a model is loaded."""

from __future__ import annotations

from torch import Tensor

from tilewise._operator import Operator

_PERMUTE_Q_B_PROJ = Operator("permute_q_b_proj")
_PERMUTE_WV_PROJ = Operator("permute_wv_proj")


def permute_q_b_proj(
    weight: Tensor,
    scales: Tensor,
    h_q: int,
    d_q: int,
    *,
    weight_out: Tensor | None = None,
    scales_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Reorders the rows that project to q (docs/operators.md, section 7).

    Args:
        weight: [h_q * d_q, r] float8_e4m3fn.
        scales: [h_q * d_q, r / granularity / 4] int32, column-major: four exponent bytes each, one for 32 or
            128 columns.
        h_q: heads of q.
        d_q: channels of a head; a multiple of 16.
        weight_out, scales_out: as weight and scales; the strides of scales_out are (1, at least h_q * d_q).

    Returns:
        weight_out and scales_out. The row of head h and channel c has moved to
        ``c // 16 * h_q * 16 + h * 16 + c % 16``.

    Raises:
        RuntimeError: an argument is not as above, or requires grad. Nothing has been written then.
    """
    return _PERMUTE_Q_B_PROJ.call((weight, scales, h_q, d_q), (weight_out, scales_out))


def permute_wv_proj(
    weight: Tensor,
    scales: Tensor,
    group_size: int,
    d_o: int = 512,
    *,
    weight_out: Tensor | None = None,
    scales_out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Reorders the columns that the attention's output is multiplied with (docs/operators.md, section 7).

    Args:
        weight: [groups, n, group_size * d_o] float8_e4m3fn, contiguous.
        scales: [groups, n, group_size * d_o / 128] int32, contiguous: four exponent bytes each, one for 32
            columns.
        group_size: heads of a group.
        d_o: channels of a head; 512.
        weight_out, scales_out: as weight and scales.

    Returns:
        weight_out and scales_out. The column of head g (inside its group) and channel c has moved to
        ``c // 32 * group_size * 32 + g * 32 + c % 32``, its scale with it.

    Raises:
        RuntimeError: an argument is not as above, or requires grad. Nothing has been written then.
    """
    return _PERMUTE_WV_PROJ.call((weight, scales, group_size, d_o), (weight_out, scales_out))
