"""The toy task, the transformer and its sampling."""

import pytest

torch = pytest.importorskip("torch")

from rlprof_ops.demo import policy, toy_task  # noqa: E402

pytestmark = pytest.mark.torch


def test_reward_counts_places_of_the_prompts_parity():
    prompt = torch.tensor([[4, 1, 1, 1], [3, 0, 0, 0]])
    completion = torch.tensor([[2, 4, 5, toy_task.STOP], [1, 3, 5, 7]])
    mask = torch.ones(2, 4)

    assert toy_task.rewards(prompt, completion, mask).tolist() == [0.5, 1.0]


def test_nothing_after_the_stop_is_rewarded():
    completion = torch.tensor([[toy_task.STOP, 2, 2, 2]])
    mask = torch.tensor([[1.0, 0.0, 0.0, 0.0]])

    assert toy_task.rewards(torch.zeros(1, 4, dtype=torch.long), completion, mask).item() == 0


def test_an_answer_that_ignores_the_prompt_earns_one_half():
    prompt = toy_task.prompts(4000, torch.Generator().manual_seed(0))
    completion = torch.zeros(4000, 12, dtype=torch.long)

    assert toy_task.rewards(prompt, completion, torch.ones(4000, 12)).mean().item() == pytest.approx(
        0.5, abs=0.03
    )


def test_sampling_is_repeatable_and_masks_what_follows_a_stop():
    model, prompt = policy.new_policy(0), toy_task.prompts(64, torch.Generator().manual_seed(1))

    completion, mask = policy.sample(model, prompt, torch.Generator().manual_seed(2))
    again, _ = policy.sample(model, prompt, torch.Generator().manual_seed(2))

    assert torch.equal(completion, again)
    for tokens, kept in zip(completion.tolist(), mask.sum(dim=1).int().tolist(), strict=True):
        stop = tokens.index(toy_task.STOP) + 1 if toy_task.STOP in tokens else len(tokens)
        assert kept == stop


def test_logprobs_are_those_of_the_steps_of_sampling():
    model, prompt = policy.new_policy(0), toy_task.prompts(3, torch.Generator().manual_seed(1))
    completion, _ = policy.sample(model, prompt, torch.Generator().manual_seed(2))

    together = policy.logprobs(model, prompt, completion)

    ids = prompt
    for column in range(completion.shape[1]):
        step = model(ids)[:, -1].log_softmax(-1).gather(1, completion[:, column : column + 1])
        torch.testing.assert_close(together[:, column : column + 1], step, atol=1e-5, rtol=1e-5)
        ids = torch.cat([ids, completion[:, column : column + 1]], dim=1)


def test_same_seed_same_weights_and_the_global_generator_is_untouched():
    torch.manual_seed(5)
    first = policy.new_policy(1)
    drawn = torch.rand(1)
    torch.manual_seed(5)

    assert torch.equal(torch.rand(1), drawn)
    assert torch.equal(first.head.weight, policy.new_policy(1).head.weight)
    assert not torch.equal(first.head.weight, policy.new_policy(2).head.weight)
