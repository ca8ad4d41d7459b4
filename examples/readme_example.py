import tilewise
import torch
from flash_mla import flash_mla_with_kvcache, get_mla_metadata

kv = torch.randn(1000, 512).bfloat16()  # latent KV rows
cache = tilewise.quantize_kv(kv, "v4_fp8", page=64)
q = torch.randn(2, 1, 128, 512).bfloat16()  # 2 requests, 1 token each, 128 heads
indices = torch.randint(0, 1000, (2, 1, 512), dtype=torch.int32)  # the tokens they attend to
out, lse = tilewise.sparse_decode(q, cache, indices, softmax_scale=512**-0.5)

schedule, _ = get_mla_metadata()  # the same through FlashMLA's names
compatible = {"is_fp8_kvcache": True, "indices": indices}
out_2, lse_2 = flash_mla_with_kvcache(q, cache, None, None, 512, schedule, **compatible)
assert torch.equal(out, out_2)
assert torch.equal(lse, lse_2)
