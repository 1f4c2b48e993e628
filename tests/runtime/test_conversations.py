"""Answers to one prompt and turns of one sample, told by tokens alone."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

import pytest

from rlprof_ops.job.knobs import python_path
from rlprof_ops.runtime import conversations
from rlprof_ops.runtime.conversations import Conversations

SECOND = 1_000_000_000


def draw(random_: random.Random, most: int) -> list[int]:
    return [random_.randrange(100) for _ in range(random_.randint(2, most))]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("drops_last", [False, True])
def test_every_turn_is_of_its_sample_and_every_sample_of_its_group(seed: int, drops_last: bool) -> None:
    """Eight prompts with one beginning, four answers each, up to five turns; turns of all are mixed."""
    random_, told = random.Random(seed), Conversations()
    system = draw(random_, 200)
    open_ = {(group, n): ([*system, 1000 + group], 1) for group in range(8) for n in range(4)}
    found: dict[tuple[int, int], list[conversations.Place]] = {key: [] for key in open_}
    now = 0
    while open_:
        key = random_.choice(list(open_))
        prompt, turn = open_.pop(key)
        answer, now = draw(random_, 90), now + SECOND
        found[key].append(told.place(f"{key} turn {turn}", prompt, answer, now, now + SECOND // 2))
        if random_.random() < 0.8 and turn < 5:
            kept = answer[:-1] if drops_last and len(answer) > 1 else answer
            open_[key] = (prompt + kept + draw(random_, 60), turn + 1)
    for key, places in found.items():
        assert [place.turn for place in places] == list(range(1, len(places) + 1))
        assert [place.first for place in places] == [None, *[f"{key} turn 1"] * (len(places) - 1)]
    groups = [{place.group for n in range(4) for place in found[group, n]} for group in range(8)]
    assert [len(each) for each in groups] == [1] * 8 and len(set.union(*groups)) == 8


def test_equal_answers_are_each_followed_once() -> None:
    told = Conversations()
    for name in "ab":
        told.place(name, [1, 2], [3, 4], 0, 10)
    after = [told.place(name, [1, 2, 3, 4, 5], [6, 7], SECOND, SECOND + 1) for name in "cd"]
    assert {place.first for place in after} == {"a", "b"}


def test_what_was_not_done_yet_is_not_followed() -> None:
    told = Conversations()
    told.place("a", [1, 2], [3, 4], 0, 5 * SECOND)
    assert told.place("b", [1, 2, 3, 4], [5], SECOND, 6 * SECOND).turn == 1


def test_images_make_another_prompt_and_the_same_conversation() -> None:
    told = Conversations()
    cat, dog = (told.place(name, [1, 2, 3], [len(name), 9], 0, 1, [name]) for name in ("cat", "a dog"))
    assert cat.group != dog.group
    later = told.place("c", [1, 2, 3, 3, 9, 8], [7], SECOND, 2 * SECOND, ["cat", "a mouse"])
    assert (later.first, later.turn, later.group) == ("cat", 2, cat.group)


def test_only_the_newest_answers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "MOST_ENDED", 10)
    told = Conversations()
    for n in range(1000):
        told.place(str(n), [n] * 40, [n, n], 0, 1)
    assert sum(len(same) for endings in told._ended.values() for same in endings.values()) == 10
    assert [told.place("x", [n] * 42, [1], SECOND, SECOND).turn for n in (989, 995)] == [1, 2]


def test_a_group_is_the_same_in_every_process() -> None:
    program = (
        "from rlprof_ops.runtime.conversations import Conversations\n"
        "print(Conversations().place('a', list(range(100)), [1], 0, 1, ['image']).group)\n"
    )
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": python_path(None)}
    groups = {
        subprocess.run(
            [sys.executable, "-c", program], env={**env, "PYTHONHASHSEED": seed}, check=True, timeout=60,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(groups) == 1


def test_a_long_prompt_costs_little() -> None:
    told, prompt, answer = Conversations(), list(range(30_000)), list(range(2_000))
    began = time.process_time()
    for n in range(20):
        told.place(str(n), prompt, answer, 0, 1)
    assert (time.process_time() - began) / 20 < 0.05
