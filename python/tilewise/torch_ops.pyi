# Written by tools/generate_torch_stub.py from the operators' schemas; not to be edited.
"""torch.ops.tilewise under a name that type checkers know."""

from collections.abc import Sequence

from torch import Tensor

class _AppendKv:
    def __call__(
        self,
        kv: Tensor,
        cache: Tensor,
        slots: Tensor,
        record: str | None = None,
    ) -> None: ...
    def default(
        self,
        kv: Tensor,
        cache: Tensor,
        slots: Tensor,
        record: str | None = None,
    ) -> None: ...

append_kv: _AppendKv

class _BlockSparsePrefillBwd:
    def __call__(
        self,
        d_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        q2k: Tensor | None,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        q_block: int = 128,
        kv_block: int = 128,
        causal: bool = True,
        window: Sequence[int] = (-1, -1),
        sink_bias: Tensor | None = None,
        deterministic: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
    def default(
        self,
        d_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        q2k: Tensor | None,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        q_block: int = 128,
        kv_block: int = 128,
        causal: bool = True,
        window: Sequence[int] = (-1, -1),
        sink_bias: Tensor | None = None,
        deterministic: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
    def out(
        self,
        d_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        q2k: Tensor | None,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        q_block: int = 128,
        kv_block: int = 128,
        causal: bool = True,
        window: Sequence[int] = (-1, -1),
        sink_bias: Tensor | None = None,
        deterministic: bool = True,
        *,
        dq: Tensor,
        dk: Tensor,
        dv: Tensor,
        d_sink: Tensor | None = None,
    ) -> None: ...

block_sparse_prefill_bwd: _BlockSparsePrefillBwd

class _BlockSparsePrefillFwd:
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q2k: Tensor | None,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        q_block: int = 128,
        kv_block: int = 128,
        causal: bool = True,
        window: Sequence[int] = (-1, -1),
        sink_bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def default(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q2k: Tensor | None,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        q_block: int = 128,
        kv_block: int = 128,
        causal: bool = True,
        window: Sequence[int] = (-1, -1),
        sink_bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def out(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q2k: Tensor | None,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        q_block: int = 128,
        kv_block: int = 128,
        causal: bool = True,
        window: Sequence[int] = (-1, -1),
        sink_bias: Tensor | None = None,
        *,
        out: Tensor,
        lse: Tensor,
    ) -> None: ...

block_sparse_prefill_fwd: _BlockSparsePrefillFwd

class _BlockSparsePrefillFwdNoGrad:
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q2k: Tensor | None,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        q_block: int = 128,
        kv_block: int = 128,
        causal: bool = True,
        window: Sequence[int] = (-1, -1),
        sink_bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def default(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        q2k: Tensor | None,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        q_block: int = 128,
        kv_block: int = 128,
        causal: bool = True,
        window: Sequence[int] = (-1, -1),
        sink_bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...

block_sparse_prefill_fwd_no_grad: _BlockSparsePrefillFwdNoGrad

class _CombinePartials:
    def __call__(
        self,
        out_partials: Tensor,
        lse_partials: Tensor,
        attn_sink: Tensor | None = None,
        base2: bool = False,
    ) -> tuple[Tensor, Tensor]: ...
    def default(
        self,
        out_partials: Tensor,
        lse_partials: Tensor,
        attn_sink: Tensor | None = None,
        base2: bool = False,
    ) -> tuple[Tensor, Tensor]: ...
    def out(
        self,
        out_partials: Tensor,
        lse_partials: Tensor,
        attn_sink: Tensor | None = None,
        base2: bool = False,
        *,
        out: Tensor,
        lse: Tensor,
    ) -> None: ...

combine_partials: _CombinePartials

class _CombinePartialsFused:
    def __call__(
        self,
        out_partials: Tensor,
        lse_partials: Tensor,
        attn_sink: Tensor | None = None,
        base2: bool = False,
        n_groups: int = 1,
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def default(
        self,
        out_partials: Tensor,
        lse_partials: Tensor,
        attn_sink: Tensor | None = None,
        base2: bool = False,
        n_groups: int = 1,
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def out(
        self,
        out_partials: Tensor,
        lse_partials: Tensor,
        attn_sink: Tensor | None = None,
        base2: bool = False,
        n_groups: int = 1,
        *,
        out_fp8: Tensor,
        out_sf: Tensor,
        lse: Tensor,
    ) -> None: ...

combine_partials_fused: _CombinePartialsFused

class _DenseDecode:
    def __call__(
        self,
        q: Tensor,
        k_cache: Tensor,
        block_table: Tensor,
        cache_seqlens: Tensor,
        softmax_scale: float,
        d_v: int = 512,
        causal: bool = False,
        window: Sequence[int] = (-1, -1),
        attn_sink: Tensor | None = None,
        descale_q: Tensor | None = None,
        descale_k: Tensor | None = None,
        batch_invariant: bool = False,
        plan: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def default(
        self,
        q: Tensor,
        k_cache: Tensor,
        block_table: Tensor,
        cache_seqlens: Tensor,
        softmax_scale: float,
        d_v: int = 512,
        causal: bool = False,
        window: Sequence[int] = (-1, -1),
        attn_sink: Tensor | None = None,
        descale_q: Tensor | None = None,
        descale_k: Tensor | None = None,
        batch_invariant: bool = False,
        plan: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def out(
        self,
        q: Tensor,
        k_cache: Tensor,
        block_table: Tensor,
        cache_seqlens: Tensor,
        softmax_scale: float,
        d_v: int = 512,
        causal: bool = False,
        window: Sequence[int] = (-1, -1),
        attn_sink: Tensor | None = None,
        descale_q: Tensor | None = None,
        descale_k: Tensor | None = None,
        batch_invariant: bool = False,
        plan: Tensor | None = None,
        *,
        out: Tensor,
        lse: Tensor,
    ) -> None: ...

dense_decode: _DenseDecode

class _DenseDecodePlan:
    def __call__(
        self,
        q: Tensor,
        k_cache: Tensor,
        block_table: Tensor,
        cache_seqlens: Tensor,
        causal: bool = False,
        window: Sequence[int] = (-1, -1),
    ) -> Tensor: ...
    def default(
        self,
        q: Tensor,
        k_cache: Tensor,
        block_table: Tensor,
        cache_seqlens: Tensor,
        causal: bool = False,
        window: Sequence[int] = (-1, -1),
    ) -> Tensor: ...
    def out(
        self,
        q: Tensor,
        k_cache: Tensor,
        block_table: Tensor,
        cache_seqlens: Tensor,
        causal: bool = False,
        window: Sequence[int] = (-1, -1),
        *,
        plan: Tensor,
    ) -> None: ...

dense_decode_plan: _DenseDecodePlan

class _DensePrefillBwd:
    def __call__(
        self,
        d_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        causal: bool = False,
        window: Sequence[int] = (-1, -1),
        sink_bias: Tensor | None = None,
        deterministic: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
    def default(
        self,
        d_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        causal: bool = False,
        window: Sequence[int] = (-1, -1),
        sink_bias: Tensor | None = None,
        deterministic: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
    def out(
        self,
        d_out: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        lse: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        causal: bool = False,
        window: Sequence[int] = (-1, -1),
        sink_bias: Tensor | None = None,
        deterministic: bool = True,
        *,
        dq: Tensor,
        dk: Tensor,
        dv: Tensor,
        d_sink: Tensor | None = None,
    ) -> None: ...

dense_prefill_bwd: _DensePrefillBwd

class _DensePrefillFwd:
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        causal: bool = False,
        window: Sequence[int] = (-1, -1),
        sink_bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def default(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        causal: bool = False,
        window: Sequence[int] = (-1, -1),
        sink_bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def out(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        causal: bool = False,
        window: Sequence[int] = (-1, -1),
        sink_bias: Tensor | None = None,
        *,
        out: Tensor,
        lse: Tensor,
    ) -> None: ...

dense_prefill_fwd: _DensePrefillFwd

class _DensePrefillFwdNoGrad:
    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        causal: bool = False,
        window: Sequence[int] = (-1, -1),
        sink_bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def default(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        softmax_scale: float,
        causal: bool = False,
        window: Sequence[int] = (-1, -1),
        sink_bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...

dense_prefill_fwd_no_grad: _DensePrefillFwdNoGrad

class _DequantizeKv:
    def __call__(
        self,
        pages: Tensor,
        record: str,
    ) -> Tensor: ...
    def default(
        self,
        pages: Tensor,
        record: str,
    ) -> Tensor: ...
    def out(
        self,
        pages: Tensor,
        record: str,
        *,
        x: Tensor,
    ) -> None: ...

dequantize_kv: _DequantizeKv

class _ExpandBlockSelection:
    def __call__(
        self,
        q2k: Tensor,
        factor: int,
    ) -> Tensor: ...
    def default(
        self,
        q2k: Tensor,
        factor: int,
    ) -> Tensor: ...
    def out(
        self,
        q2k: Tensor,
        factor: int,
        *,
        out: Tensor,
    ) -> None: ...

expand_block_selection: _ExpandBlockSelection

class _FusedDecode:
    def __call__(
        self,
        q: Tensor,
        kv_cache: Tensor,
        indices: Tensor,
        token_positions: Tensor,
        cos_sin_cache: Tensor,
        softmax_scale: float,
        n_groups: int,
        q_norm_eps: float | None = None,
        record: str | None = None,
        topk_length: Tensor | None = None,
        extra_cache: Tensor | None = None,
        extra_indices: Tensor | None = None,
        extra_topk_length: Tensor | None = None,
        extra_record: str | None = None,
        attn_sink: Tensor | None = None,
        num_splits: int | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def default(
        self,
        q: Tensor,
        kv_cache: Tensor,
        indices: Tensor,
        token_positions: Tensor,
        cos_sin_cache: Tensor,
        softmax_scale: float,
        n_groups: int,
        q_norm_eps: float | None = None,
        record: str | None = None,
        topk_length: Tensor | None = None,
        extra_cache: Tensor | None = None,
        extra_indices: Tensor | None = None,
        extra_topk_length: Tensor | None = None,
        extra_record: str | None = None,
        attn_sink: Tensor | None = None,
        num_splits: int | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def out(
        self,
        q: Tensor,
        kv_cache: Tensor,
        indices: Tensor,
        token_positions: Tensor,
        cos_sin_cache: Tensor,
        softmax_scale: float,
        n_groups: int,
        q_norm_eps: float | None = None,
        record: str | None = None,
        topk_length: Tensor | None = None,
        extra_cache: Tensor | None = None,
        extra_indices: Tensor | None = None,
        extra_topk_length: Tensor | None = None,
        extra_record: str | None = None,
        attn_sink: Tensor | None = None,
        num_splits: int | None = None,
        *,
        out_fp8: Tensor,
        out_sf: Tensor,
        lse: Tensor,
        out_bf16: Tensor | None = None,
    ) -> None: ...

fused_decode: _FusedDecode

class _FusedDecodePartials:
    def __call__(
        self,
        q: Tensor,
        kv_cache: Tensor,
        indices: Tensor,
        token_positions: Tensor,
        cos_sin_cache: Tensor,
        softmax_scale: float,
        n_groups: int,
        q_norm_eps: float | None = None,
        record: str | None = None,
        topk_length: Tensor | None = None,
        extra_cache: Tensor | None = None,
        extra_indices: Tensor | None = None,
        extra_topk_length: Tensor | None = None,
        extra_record: str | None = None,
        attn_sink: Tensor | None = None,
        num_splits: int = 1,
    ) -> tuple[Tensor, Tensor]: ...
    def default(
        self,
        q: Tensor,
        kv_cache: Tensor,
        indices: Tensor,
        token_positions: Tensor,
        cos_sin_cache: Tensor,
        softmax_scale: float,
        n_groups: int,
        q_norm_eps: float | None = None,
        record: str | None = None,
        topk_length: Tensor | None = None,
        extra_cache: Tensor | None = None,
        extra_indices: Tensor | None = None,
        extra_topk_length: Tensor | None = None,
        extra_record: str | None = None,
        attn_sink: Tensor | None = None,
        num_splits: int = 1,
    ) -> tuple[Tensor, Tensor]: ...
    def out(
        self,
        q: Tensor,
        kv_cache: Tensor,
        indices: Tensor,
        token_positions: Tensor,
        cos_sin_cache: Tensor,
        softmax_scale: float,
        n_groups: int,
        q_norm_eps: float | None = None,
        record: str | None = None,
        topk_length: Tensor | None = None,
        extra_cache: Tensor | None = None,
        extra_indices: Tensor | None = None,
        extra_topk_length: Tensor | None = None,
        extra_record: str | None = None,
        attn_sink: Tensor | None = None,
        num_splits: int = 1,
        *,
        o_accum: Tensor,
        lse_accum: Tensor,
    ) -> None: ...

fused_decode_partials: _FusedDecodePartials

class _FusedPrefill:
    def __call__(
        self,
        q: Tensor,
        kv: Tensor,
        indices: Tensor,
        token_positions: Tensor,
        cos_sin_cache: Tensor,
        softmax_scale: float,
        n_groups: int,
        q_norm_eps: float | None = None,
        topk_length: Tensor | None = None,
        attn_sink: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
    def default(
        self,
        q: Tensor,
        kv: Tensor,
        indices: Tensor,
        token_positions: Tensor,
        cos_sin_cache: Tensor,
        softmax_scale: float,
        n_groups: int,
        q_norm_eps: float | None = None,
        topk_length: Tensor | None = None,
        attn_sink: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
    def out(
        self,
        q: Tensor,
        kv: Tensor,
        indices: Tensor,
        token_positions: Tensor,
        cos_sin_cache: Tensor,
        softmax_scale: float,
        n_groups: int,
        q_norm_eps: float | None = None,
        topk_length: Tensor | None = None,
        attn_sink: Tensor | None = None,
        *,
        out_fp8: Tensor,
        out_sf: Tensor,
        max_logits: Tensor,
        lse: Tensor,
        out_bf16: Tensor | None = None,
    ) -> None: ...

fused_prefill: _FusedPrefill

class _GetNumThreads:
    def __call__(
        self,
    ) -> int: ...
    def default(
        self,
    ) -> int: ...

get_num_threads: _GetNumThreads

class _InvertBlockSelection:
    def __call__(
        self,
        q2k: Tensor,
        num_kv_blocks: int,
    ) -> tuple[Tensor, Tensor]: ...
    def default(
        self,
        q2k: Tensor,
        num_kv_blocks: int,
    ) -> tuple[Tensor, Tensor]: ...
    def out(
        self,
        q2k: Tensor,
        num_kv_blocks: int,
        *,
        row_ptr: Tensor,
        q_blocks: Tensor,
    ) -> None: ...

invert_block_selection: _InvertBlockSelection

class _Noop:
    def __call__(
        self,
        x: Tensor,
    ) -> None: ...
    def default(
        self,
        x: Tensor,
    ) -> None: ...

noop: _Noop

class _PermuteQBProj:
    def __call__(
        self,
        weight: Tensor,
        scales: Tensor,
        h_q: int,
        d_q: int,
    ) -> tuple[Tensor, Tensor]: ...
    def default(
        self,
        weight: Tensor,
        scales: Tensor,
        h_q: int,
        d_q: int,
    ) -> tuple[Tensor, Tensor]: ...
    def out(
        self,
        weight: Tensor,
        scales: Tensor,
        h_q: int,
        d_q: int,
        *,
        weight_out: Tensor,
        scales_out: Tensor,
    ) -> None: ...

permute_q_b_proj: _PermuteQBProj

class _PermuteWvProj:
    def __call__(
        self,
        weight: Tensor,
        scales: Tensor,
        group_size: int,
        d_o: int = 512,
    ) -> tuple[Tensor, Tensor]: ...
    def default(
        self,
        weight: Tensor,
        scales: Tensor,
        group_size: int,
        d_o: int = 512,
    ) -> tuple[Tensor, Tensor]: ...
    def out(
        self,
        weight: Tensor,
        scales: Tensor,
        group_size: int,
        d_o: int = 512,
        *,
        weight_out: Tensor,
        scales_out: Tensor,
    ) -> None: ...

permute_wv_proj: _PermuteWvProj

class _QuantizeKv:
    def __call__(
        self,
        x: Tensor,
        record: str,
        page: int,
    ) -> Tensor: ...
    def default(
        self,
        x: Tensor,
        record: str,
        page: int,
    ) -> Tensor: ...
    def out(
        self,
        x: Tensor,
        record: str,
        page: int,
        *,
        pages: Tensor,
    ) -> None: ...

quantize_kv: _QuantizeKv

class _SetNumThreads:
    def __call__(
        self,
        n: int,
    ) -> None: ...
    def default(
        self,
        n: int,
    ) -> None: ...

set_num_threads: _SetNumThreads

class _SparseDecode:
    def __call__(
        self,
        q: Tensor,
        kv_cache: Tensor,
        indices: Tensor,
        softmax_scale: float,
        record: str | None = None,
        topk_length: Tensor | None = None,
        extra_cache: Tensor | None = None,
        extra_indices: Tensor | None = None,
        extra_topk_length: Tensor | None = None,
        extra_record: str | None = None,
        attn_sink: Tensor | None = None,
        batch_invariant: bool = False,
        plan: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def default(
        self,
        q: Tensor,
        kv_cache: Tensor,
        indices: Tensor,
        softmax_scale: float,
        record: str | None = None,
        topk_length: Tensor | None = None,
        extra_cache: Tensor | None = None,
        extra_indices: Tensor | None = None,
        extra_topk_length: Tensor | None = None,
        extra_record: str | None = None,
        attn_sink: Tensor | None = None,
        batch_invariant: bool = False,
        plan: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]: ...
    def out(
        self,
        q: Tensor,
        kv_cache: Tensor,
        indices: Tensor,
        softmax_scale: float,
        record: str | None = None,
        topk_length: Tensor | None = None,
        extra_cache: Tensor | None = None,
        extra_indices: Tensor | None = None,
        extra_topk_length: Tensor | None = None,
        extra_record: str | None = None,
        attn_sink: Tensor | None = None,
        batch_invariant: bool = False,
        plan: Tensor | None = None,
        *,
        out: Tensor,
        lse: Tensor,
    ) -> None: ...

sparse_decode: _SparseDecode

class _SparseDecodePlan:
    def __call__(
        self,
        q: Tensor,
        kv_cache: Tensor,
        indices: Tensor,
        record: str | None = None,
        topk_length: Tensor | None = None,
        extra_cache: Tensor | None = None,
        extra_indices: Tensor | None = None,
        extra_topk_length: Tensor | None = None,
        extra_record: str | None = None,
    ) -> Tensor: ...
    def default(
        self,
        q: Tensor,
        kv_cache: Tensor,
        indices: Tensor,
        record: str | None = None,
        topk_length: Tensor | None = None,
        extra_cache: Tensor | None = None,
        extra_indices: Tensor | None = None,
        extra_topk_length: Tensor | None = None,
        extra_record: str | None = None,
    ) -> Tensor: ...
    def out(
        self,
        q: Tensor,
        kv_cache: Tensor,
        indices: Tensor,
        record: str | None = None,
        topk_length: Tensor | None = None,
        extra_cache: Tensor | None = None,
        extra_indices: Tensor | None = None,
        extra_topk_length: Tensor | None = None,
        extra_record: str | None = None,
        *,
        plan: Tensor,
    ) -> None: ...

sparse_decode_plan: _SparseDecodePlan

class _SparsePrefillBwd:
    def __call__(
        self,
        d_out: Tensor,
        q: Tensor,
        kv: Tensor,
        out: Tensor,
        lse: Tensor,
        indices: Tensor,
        softmax_scale: float,
        d_v: int = 512,
        topk_length: Tensor | None = None,
        sink_bias: Tensor | None = None,
        kl_target: bool = False,
        deterministic: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
    def default(
        self,
        d_out: Tensor,
        q: Tensor,
        kv: Tensor,
        out: Tensor,
        lse: Tensor,
        indices: Tensor,
        softmax_scale: float,
        d_v: int = 512,
        topk_length: Tensor | None = None,
        sink_bias: Tensor | None = None,
        kl_target: bool = False,
        deterministic: bool = True,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
    def out(
        self,
        d_out: Tensor,
        q: Tensor,
        kv: Tensor,
        out: Tensor,
        lse: Tensor,
        indices: Tensor,
        softmax_scale: float,
        d_v: int = 512,
        topk_length: Tensor | None = None,
        sink_bias: Tensor | None = None,
        kl_target: bool = False,
        deterministic: bool = True,
        *,
        dq: Tensor,
        dkv: Tensor,
        d_sink: Tensor | None = None,
        kl_target_out: Tensor | None = None,
    ) -> None: ...

sparse_prefill_bwd: _SparsePrefillBwd

class _SparsePrefillFwd:
    def __call__(
        self,
        q: Tensor,
        kv: Tensor,
        indices: Tensor,
        softmax_scale: float,
        d_v: int = 512,
        topk_length: Tensor | None = None,
        attn_sink: Tensor | None = None,
        sink_bias: Tensor | None = None,
        indexer_topk: int = 0,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
    def default(
        self,
        q: Tensor,
        kv: Tensor,
        indices: Tensor,
        softmax_scale: float,
        d_v: int = 512,
        topk_length: Tensor | None = None,
        attn_sink: Tensor | None = None,
        sink_bias: Tensor | None = None,
        indexer_topk: int = 0,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]: ...
    def out(
        self,
        q: Tensor,
        kv: Tensor,
        indices: Tensor,
        softmax_scale: float,
        d_v: int = 512,
        topk_length: Tensor | None = None,
        attn_sink: Tensor | None = None,
        sink_bias: Tensor | None = None,
        indexer_topk: int = 0,
        *,
        out: Tensor,
        max_logits: Tensor,
        lse: Tensor,
        lse_indexer: Tensor | None = None,
    ) -> None: ...

sparse_prefill_fwd: _SparsePrefillFwd

class _SparsePrefillFwdNoGrad:
    def __call__(
        self,
        q: Tensor,
        kv: Tensor,
        indices: Tensor,
        softmax_scale: float,
        d_v: int = 512,
        topk_length: Tensor | None = None,
        attn_sink: Tensor | None = None,
        sink_bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def default(
        self,
        q: Tensor,
        kv: Tensor,
        indices: Tensor,
        softmax_scale: float,
        d_v: int = 512,
        topk_length: Tensor | None = None,
        attn_sink: Tensor | None = None,
        sink_bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]: ...

sparse_prefill_fwd_no_grad: _SparsePrefillFwdNoGrad
