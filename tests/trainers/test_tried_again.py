"""Steps for which a trainer's loop samples again and again until its batch is full: each is one step, with
all attempts in it and in its window.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlprof_ops.job.knobs import import_path
from tests import upstream
from tests.trainers import environments
from tests.trainers.own_log import agree
from tests.trainers.test_training_scripts import Ran, Took, run, timed

pytestmark = [pytest.mark.trainers, pytest.mark.timeout(environments.INSTALL_DEADLINE_S + 300)]
ATTEMPTS, STEPS = 3, 4  # of the scripts
WINDOW = 3


def tried_again(trainer: str, script: str, worker: str, folder: Path, **env: str) -> Ran:
    wanted = {"RLPROF_STEPS": str(WINDOW), "RLPROF_WORKERS": worker}
    return run(f"{trainer}/{script}", folder=folder / "job", with_us=True, trainer=trainer, **wanted, **env)


def hold(ours: Ran, worker: str, whole: str, phases: tuple[str, str]) -> None:
    """Each step once, as long as its attempts by the trainer's own timer, and its window with all of them."""
    [log] = ours.folder.rglob(f"{worker}_rank0_*.jsonl")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [row for row in rows if row["event"] == "step"]
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    names = [[name for name, *_ in row["phases"]] for row in steps]
    assert names == STEPS * [[*ATTEMPTS * phases[:1], phases[1]]]
    own: Took = timed(ours.output)
    told = {(row["step"], name): 0.0 for row in steps for name, *_ in row["phases"]}
    for row in steps:
        for name, begin, end, _ in row["phases"]:
            told[row["step"], name] += (end - begin) / 1e9
    agree({key: (seconds, own[key]) for key, seconds in told.items()})
    for row in (row for row in steps if row["step"] != WINDOW):  # whose opening is no part of it
        assert (row["end_ns"] - row["begin_ns"]) / 1e9 >= own[row["step"], whole] - 0.005
    [opened, closed] = [row for row in rows if row["event"] in ("opened", "closed")]
    of_step = next(row for row in steps if row["step"] == WINDOW)
    assert opened["t_ns"] < of_step["end_ns"] <= closed["t_ns"] and not closed["partial"]
    assert [each.state for each in ours.manifest.captures] == ["ok"]


def test_nemo_rl_with_dynamic_sampling(tmp_path: Path) -> None:
    if why := environments.lacking("nemo_rl"):
        pytest.skip(why)
    path = f"{import_path()}:{environments.ensure('nemo_rl').source}"
    ours = tried_again("nemo_rl", "dynamic_sampling.py", "driver", tmp_path, PYTHONPATH=path)
    hold(ours, "driver", "total_step_time", ("generation", "policy_training"))


def test_verl_that_filters_groups(tmp_path: Path) -> None:
    ours = tried_again("verl", "filter_groups.py", "controller", tmp_path)
    hold(ours, "controller", "step", ("gen", "update_actor"))


@pytest.mark.parametrize("file, name", [("grpo.py", "is_batch_complete"), ("grpo_sync.py", "is_complete")])
def test_nemo_rl_says_so_in_its_own_words(file: str, name: str) -> None:
    """The script's loop is theirs: its timer is left by `continue` where this variable is false."""
    if why := upstream.missing():
        pytest.skip(why)
    source = (upstream.tree("nemo_rl") / "nemo_rl/algorithms" / file).read_text(encoding="utf-8")
    assert name in set(_left_without(ast.parse(source)))


def _left_without(tree: ast.AST) -> Iterator[str]:
    """What `if not NAME: … continue` asks for in a loop's `with timer.time("total_step_time")`."""
    timer = "timer.time('total_step_time')"
    for step in ast.walk(tree):
        if isinstance(step, ast.With) and ast.unparse(step.items[0]) == timer:
            for node in ast.walk(step):
                match node:
                    case ast.If(test=ast.UnaryOp(op=ast.Not(), operand=asked)) if any(
                        isinstance(each, ast.Continue) for each in node.body
                    ):
                        yield ast.unparse(asked)
