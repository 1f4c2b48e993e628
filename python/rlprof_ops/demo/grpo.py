"""The mathematics of GRPO: group-normalised advantages, the KL estimate, the clipped policy-gradient loss."""

from __future__ import annotations

import torch


def group_advantages(rewards: torch.Tensor, group_size: int, eps: float = 1e-6) -> torch.Tensor:
    """Reward minus its group's mean, over the group's standard deviation (DeepSeekMath, arXiv 2402.03300,
    4.1.2).

    rewards: float (B,), the completions of one prompt adjacent, B a multiple of `group_size`. A group whose
    rewards are all equal teaches nothing and gets zeros. Raises ValueError when B does not divide.
    """
    if group_size < 1 or rewards.numel() % group_size:
        raise ValueError(f"{rewards.numel()} rewards do not divide into groups of {group_size}")
    groups = rewards.view(-1, group_size)
    centred = groups - groups.mean(dim=1, keepdim=True)
    return (centred / (groups.std(dim=1, keepdim=True, unbiased=False) + eps)).view(-1)


def kl_estimate(logprobs: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Per token, never negative, unbiased for KL(policy || reference) on the policy's samples ("k3" of
    Schulman 2020).
    """
    log_ratio = reference - logprobs
    return log_ratio.exp() - log_ratio - 1


def masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over the places where mask is 1; 0 when there are none."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def loss(
    logprobs: torch.Tensor,
    old: torch.Tensor,
    reference: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    clip: float = 0.2,
    kl_weight: float = 0.01,
) -> torch.Tensor:
    """Clipped surrogate plus KL penalty, mean over tokens.

    logprobs, old, reference, mask: (B, C); advantages: (B,), one for all tokens of a completion.
    """
    ratio = (logprobs - old).exp()
    advantage = advantages.unsqueeze(1)
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    return masked_mean(kl_weight * kl_estimate(logprobs, reference) - surrogate, mask)
