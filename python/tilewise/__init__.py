"""tilewise: attention, tile by tile.

The functions here are the operators of ``torch.ops.tilewise`` (typed: ``tilewise.torch_ops``), with outputs
that the caller may own. docs/operators.md says what each one computes.
"""

from tilewise import _ops, torch_ops
from tilewise.attention import (
    combine_partials,
    dense_decode,
    dense_decode_plan,
    sparse_decode,
    sparse_decode_plan,
    sparse_prefill_fwd,
)
from tilewise.cache import append_kv, dequantize_kv, quantize_kv
from tilewise.case_file import save_case
from tilewise.fused import combine_partials_fused, fused_decode, fused_decode_partials, fused_prefill
from tilewise.threads import get_num_threads, set_num_threads
from tilewise.training import (
    block_sparse_prefill_bwd,
    block_sparse_prefill_fwd,
    dense_prefill_bwd,
    dense_prefill_fwd,
    expand_block_selection,
    invert_block_selection,
    sparse_prefill_bwd,
)
from tilewise.weights import permute_q_b_proj, permute_wv_proj

__version__ = _ops.VERSION

__all__ = [
    "__version__",
    "append_kv",
    "block_sparse_prefill_bwd",
    "block_sparse_prefill_fwd",
    "combine_partials",
    "combine_partials_fused",
    "dense_decode",
    "dense_decode_plan",
    "dense_prefill_bwd",
    "dense_prefill_fwd",
    "dequantize_kv",
    "expand_block_selection",
    "fused_decode",
    "fused_decode_partials",
    "fused_prefill",
    "get_num_threads",
    "invert_block_selection",
    "permute_q_b_proj",
    "permute_wv_proj",
    "quantize_kv",
    "save_case",
    "set_num_threads",
    "sparse_decode",
    "sparse_decode_plan",
    "sparse_prefill_bwd",
    "sparse_prefill_fwd",
    "torch_ops",
]
