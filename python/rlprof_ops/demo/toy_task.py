"""The toy task: answer a prompt with tokens of its first token's parity, and do not stop early."""

from __future__ import annotations

import torch

VOCABULARY = 16  # tokens 0..15 are words
STOP = 16  # the model may end its completion
TOKENS = VOCABULARY + 1
PROMPT_LENGTH = 4
COMPLETION_LENGTH = 12


def prompts(count: int, generator: torch.Generator) -> torch.Tensor:
    """Draw `count` random prompts: int64 of shape (count, PROMPT_LENGTH)."""
    return torch.randint(VOCABULARY, (count, PROMPT_LENGTH), generator=generator)


def rewards(prompt: torch.Tensor, completion: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Share of the COMPLETION_LENGTH places that hold a word of the prompt's parity, in [0, 1].

    prompt (B, P) and completion (B, C) are int64; mask (B, C) is 1 up to and with the stop token. Returns
    float (B,). A random policy earns a little under one half, an unconditional one never more than one half
    on average, so a rising mean shows that the policy reads its prompt.
    """
    right = (completion % 2 == prompt[:, :1] % 2) & (completion != STOP) & mask.bool()
    return right.float().sum(dim=1) / completion.shape[1]
