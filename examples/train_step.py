#!/usr/bin/env python3
"""Trains a small latent-attention layer with block-sparse attention to copy a sequence.

The layer is that of a latent-attention model in training form: tokens are projected down to a small latent,
from which keys and values of all heads are projected up; positions go into a rotated part of the keys that
all heads share. Each block of queries attends to the first block of keys and to the last ones before it.

The task: a sequence says a random word of 64 tokens again and again. From its second time on every token can
be predicted by looking 64 tokens back.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import tilewise
import torch
from torch import Tensor, nn

VOCABULARY, WORD, REPEATS = 16, 64, 4
TOKENS = WORD * REPEATS
WIDTH, LATENT, HEADS = 64, 64, 2
D_NOPE, D_ROPE, D_V = 128, 64, 128  # d_qk 192 is the first two together
BLOCK = 64
STEPS = 200
SCALE = (D_NOPE + D_ROPE) ** -0.5

# Attention of one sequence: q, k [tokens, heads, 192] and v [tokens, heads, 128] to [tokens, heads, 128].
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def first_and_last_blocks(last: int = 2) -> Tensor:
    """[query blocks, 1 + last], -1 where there are not so many: block 0, and a query block's own and its
    predecessors."""
    own = torch.arange(TOKENS // BLOCK, dtype=torch.int32)
    recent = torch.stack([own - i for i in range(last)], dim=1)
    return torch.cat([torch.zeros_like(own)[:, None], recent], dim=1)


def block_sparse_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    ends = torch.tensor([0, TOKENS], dtype=torch.int32)
    out, _lse = tilewise.block_sparse_prefill_fwd(
        q, k, v, first_and_last_blocks(), ends, ends, TOKENS, TOKENS, SCALE, q_block=BLOCK, kv_block=BLOCK
    )
    return out


def rotated(x: Tensor) -> Tensor:
    """[tokens, heads, 64] turned by its token's position, pair by pair."""
    angles = torch.arange(TOKENS)[:, None] * 1000.0 ** (-torch.arange(D_ROPE // 2) / (D_ROPE // 2))
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
    return turned.flatten(-2).to(x.dtype)


class LatentAttention(nn.Module):
    """[tokens, WIDTH] float32 to the same, through bfloat16 attention."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention
        self.q_proj = nn.Linear(WIDTH, HEADS * (D_NOPE + D_ROPE), bias=False)
        self.down_proj = nn.Linear(WIDTH, LATENT + D_ROPE, bias=False)
        self.norm = nn.RMSNorm(LATENT)
        self.up_proj = nn.Linear(LATENT, HEADS * (D_NOPE + D_V), bias=False)
        self.out_proj = nn.Linear(HEADS * D_V, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q_nope, q_rope = self.q_proj(x).view(TOKENS, HEADS, -1).split([D_NOPE, D_ROPE], dim=-1)
        latent, k_rope = self.down_proj(x).split([LATENT, D_ROPE], dim=-1)
        k_nope, v = self.up_proj(self.norm(latent)).view(TOKENS, HEADS, -1).split([D_NOPE, D_V], dim=-1)
        k_rope = rotated(k_rope[:, None]).expand(-1, HEADS, -1)
        q = torch.cat([q_nope, rotated(q_rope)], dim=-1).bfloat16()
        k = torch.cat([k_nope, k_rope], dim=-1).bfloat16()
        out = self.attention(q, k, v.bfloat16().contiguous())
        return self.out_proj(out.float().flatten(1))


class Model(nn.Module):
    """Two such layers between an embedding and the logits of the next token."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(LatentAttention(attention) for _ in range(2))
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(3))
        self.logits = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for norm, layer in zip(self.norms[:2], self.layers, strict=True):
            x = x + layer(norm(x))
        return self.logits(self.norms[2](x))


def words(seed: int) -> Iterator[Tensor]:
    """[TOKENS + 1] each: a word that is said again and again, and its first token once more."""
    source = torch.Generator().manual_seed(seed)
    while True:
        word = torch.randint(VOCABULARY, (WORD,), generator=source)
        yield torch.cat([word.repeat(REPEATS), word[:1]])


def train(attention: Attention, steps: int = STEPS, seed: int = 1) -> list[float]:
    """The loss of every step, over the tokens that can be predicted."""
    torch.manual_seed(seed)
    model = Model(attention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    losses = []
    for _, tokens in zip(range(steps), words(seed), strict=False):
        predicted = model(tokens[:-1])[WORD:]
        loss = nn.functional.cross_entropy(predicted, tokens[WORD + 1 :])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=STEPS)
    losses = train(block_sparse_attention, parser.parse_args().steps)
    for step in (*range(0, len(losses) - 1, 20), len(losses) - 1):
        print(f"step {step:3}: loss {losses[step]:.3f}")


if __name__ == "__main__":
    main()
