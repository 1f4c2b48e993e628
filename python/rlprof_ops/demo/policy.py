"""The policy: a two-layer causal transformer, sampling from it, and the log-probabilities of what was
sampled.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from rlprof_ops.demo.toy_task import COMPLETION_LENGTH, PROMPT_LENGTH, STOP, TOKENS

WIDTH = 48
HEADS = 4
LAYERS = 2


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        result: torch.Tensor = x + self.mlp(self.norm2(x))
        return result


class Policy(nn.Module):
    """Token ids (B, T) -> logits (B, T, TOKENS)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(TOKENS, WIDTH)
        self.places = nn.Embedding(PROMPT_LENGTH + COMPLETION_LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS)
        nn.init.normal_(
            self.head.weight, std=0.02
        )  # start close to uniform, as far as possible from the answer

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        logits: torch.Tensor = self.head(self.norm(self.blocks(self.tokens(ids) + self.places(places))))
        return logits


def new_policy(seed: int) -> Policy:
    """The same initial weights for the same seed on every worker; leaves torch's global generator as it
    was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Policy()


@torch.no_grad()
def sample(
    policy: Policy, prompt: torch.Tensor, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Complete each prompt (B, P) once. Returns ids (B, C) and mask (B, C): 1 up to and with the first
    stop token.
    """
    ids = prompt
    for _ in range(COMPLETION_LENGTH):
        probabilities = policy(ids)[:, -1].softmax(dim=-1)
        ids = torch.cat([ids, torch.multinomial(probabilities, 1, generator=generator)], dim=1)
    completion = ids[:, prompt.shape[1] :]
    stops_before = (completion == STOP).long().cumsum(dim=1) - (completion == STOP).long()
    return completion, (stops_before == 0).float()


def logprobs(policy: Policy, prompt: torch.Tensor, completion: torch.Tensor) -> torch.Tensor:
    """Log-probability of each completion token given all before it: (B, P), (B, C) -> (B, C)."""
    ids = torch.cat([prompt, completion], dim=1)
    logits = policy(ids[:, :-1])[:, prompt.shape[1] - 1 :]
    chosen: torch.Tensor = logits.log_softmax(dim=-1).gather(2, completion.unsqueeze(2)).squeeze(2)
    return chosen
