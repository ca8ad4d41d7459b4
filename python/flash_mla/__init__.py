"""FlashMLA's Python functions, computed by tilewise. docs/flash-mla.md says what differs."""

from tilewise import __version__

from flash_mla import fused_norm_rope_attn_rope_cast
from flash_mla.flash_mla_interface import (
    FlashMLASchedMeta,
    block_sparse_prefill_bwd,
    block_sparse_prefill_fwd,
    expand_block_selection,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_mla_sparse_bwd,
    flash_mla_sparse_fwd,
    flash_mla_with_kvcache,
    flash_mla_with_kvcache_fp8,
    get_mla_metadata,
    get_mla_metadata_dense_fp8,
)

__all__ = [
    "FlashMLASchedMeta",
    "__version__",
    "block_sparse_prefill_bwd",
    "block_sparse_prefill_fwd",
    "expand_block_selection",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_mla_sparse_bwd",
    "flash_mla_sparse_fwd",
    "flash_mla_with_kvcache",
    "flash_mla_with_kvcache_fp8",
    "fused_norm_rope_attn_rope_cast",
    "get_mla_metadata",
    "get_mla_metadata_dense_fp8",
]
