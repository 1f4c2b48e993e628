"""The GRPO mathematics against definitions written out slowly, and its gradient against the
policy-gradient theorem.
"""

import pytest

torch = pytest.importorskip("torch")

from rlprof_ops.demo import grpo  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def numbers():
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return draw


def test_advantages_are_the_groups_z_scores():
    rewards = torch.tensor([1.0, 3.0, 0.0, 0.5], dtype=torch.float64)

    advantages = grpo.group_advantages(rewards, group_size=2)

    torch.testing.assert_close(
        advantages, torch.tensor([-1.0, 1.0, -1.0, 1.0], dtype=torch.float64), atol=1e-4, rtol=0
    )


def test_a_group_of_equal_rewards_teaches_nothing():
    assert grpo.group_advantages(torch.full((4,), 0.7), group_size=4).abs().max() < 1e-6


def test_advantages_do_not_see_other_groups(numbers):
    rewards = numbers(8)
    alone = grpo.group_advantages(rewards[:4], 4)

    torch.testing.assert_close(grpo.group_advantages(rewards, 4)[:4], alone)


def test_rewards_must_divide_into_groups():
    with pytest.raises(ValueError, match="5 rewards do not divide into groups of 2"):
        grpo.group_advantages(torch.zeros(5), 2)


def test_kl_estimate_is_zero_at_the_reference_and_positive_elsewhere(numbers):
    logprobs = numbers(4, 6)

    assert grpo.kl_estimate(logprobs, logprobs).abs().max() == 0
    assert (grpo.kl_estimate(logprobs, logprobs + numbers(4, 6)) >= 0).all()


def test_kl_estimate_has_the_true_kl_as_its_expectation():
    policy, reference = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.3, 0.3, 0.4])

    expectation = (policy * grpo.kl_estimate(policy.log(), reference.log())).sum()

    torch.testing.assert_close(expectation, (policy * (policy / reference).log()).sum())


def test_loss_equals_the_sum_written_out(numbers):
    rows, columns, clip, weight = 3, 4, 0.2, 0.05
    now, old, reference = numbers(rows, columns), numbers(rows, columns), numbers(rows, columns)
    advantages = numbers(rows)
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=torch.float64)
    total = 0.0
    for row in range(rows):
        for column in range(columns):
            if not mask[row, column]:
                continue
            ratio = (now[row, column] - old[row, column]).exp()
            gain = min(ratio * advantages[row], ratio.clamp(1 - clip, 1 + clip) * advantages[row])
            log_ratio = reference[row, column] - now[row, column]
            total += -gain + weight * (log_ratio.exp() - log_ratio - 1)

    loss = grpo.loss(now, old, reference, advantages, mask, clip, weight)

    torch.testing.assert_close(loss, total / mask.sum())


def test_first_gradient_is_the_policy_gradient(numbers):
    """On-policy and without KL, d loss = - mean over tokens of advantage * d log p (REINFORCE)."""
    logits, advantages, mask = (
        numbers(2, 3, 5).requires_grad_(),
        numbers(2),
        torch.ones(2, 3, dtype=torch.float64),
    )
    chosen = torch.tensor([[0, 1, 4], [2, 2, 3]])
    now = logits.log_softmax(-1).gather(2, chosen.unsqueeze(2)).squeeze(2)

    grpo.loss(now, now.detach(), now.detach(), advantages, mask, kl_weight=0.0).backward()

    one_hot = torch.nn.functional.one_hot(chosen, 5)
    expected = -(one_hot - logits.softmax(-1)) * advantages.view(2, 1, 1) / mask.sum()
    torch.testing.assert_close(logits.grad, expected.detach())


def test_loss_gradient_passes_gradcheck(numbers):
    old, reference, advantages = numbers(2, 3), numbers(2, 3), numbers(2)
    now = (old + 0.05 * numbers(2, 3)).requires_grad_()  # inside the clip range, where the loss is smooth
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]], dtype=torch.float64)

    assert torch.autograd.gradcheck(lambda x: grpo.loss(x, old, reference, advantages, mask), (now,))


def test_clipping_stops_the_gradient_of_a_token_that_moved_far():
    now = torch.tensor([[1.0]], requires_grad=True)

    grpo.loss(now, torch.zeros(1, 1), now.detach(), torch.ones(1), torch.ones(1, 1), kl_weight=0.0).backward()

    assert now.grad.item() == 0
