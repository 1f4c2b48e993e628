"""The commands in their groups, and the names that they had before."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rlprof_ops import commands
from rlprof_ops.cli import cli
from rlprof_ops.commands._old_spellings import SPELLINGS

FILES = {path.stem for path in Path(commands.__path__[0]).glob("[!_]*.py")}


def typed(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


def test_every_command_is_in_one_group() -> None:
    named = [name.replace("-", "_") for names in commands.GROUPS.values() for name in names]
    assert sorted(named) == sorted(FILES)


def test_the_help_shows_every_command_once_the_three_of_most_first() -> None:
    shown = typed("--help").output.partition("Start with:")[2]
    found = re.findall(r"(?m)^  ([a-z-]+)  ", shown)
    assert tuple(found[:3]) == commands.START_WITH
    assert sorted(name.replace("-", "_") for name in found) == sorted(FILES)
    assert re.findall(r"(?m)^(\w+):$", shown) == [name.capitalize() for name in commands.GROUPS]


def test_help_is_typed_before_the_command_too() -> None:
    assert typed("help", "submit").output == typed("submit", "--help").output
    assert typed("help").output == typed("--help").output


@pytest.mark.parametrize("old", SPELLINGS)
def test_an_old_name_is_hidden_and_says_the_new_one(old: str) -> None:
    done = typed(old, "--help")
    new, _ = SPELLINGS[old]
    assert done.exit_code == 0 and f"Usage: cli {new.split()[0]} " in done.stdout
    assert done.stderr == f"rlprof {old} is `rlprof {new}` now; the old name stays for one release\n"
    assert f"\n  {old} " not in typed("--help").output


def test_old_command_lines_do_what_they_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ask = ("--steps", "3:5", "--workers", "*policy*")
    for old, new in (
        (("render", "--framework", "nemo_rl", *ask), ("convert", "--to", "nemo_rl", *ask)),
        (("render", "--framework=verl", *ask), ("convert", "--to=verl", *ask)),
        (
            ("import", "--framework", "nemo_rl", "--json", "NRL_NSYS_PROFILE_STEP_RANGE=3:5",
             "NRL_NSYS_WORKER_PATTERNS=*"),
            ("convert", "--from", "nemo_rl", "--format", "json", "NRL_NSYS_PROFILE_STEP_RANGE=3:5",
             "NRL_NSYS_WORKER_PATTERNS=*"),
        ),
        (("runs",), ("ps", ".")),
        (("runs", "--json"), ("ps", "--json", ".")),
        (("view", "nowhere"), ("report", "--serve", "nowhere")),
        (("live", "nowhere"), ("top", "--serve", "nowhere")),
    ):  # fmt: skip
        one, two = typed(*old), typed(*new)
        assert (one.exit_code, one.stdout, str(one.exception)) == (
            two.exit_code,
            two.stdout,
            str(two.exception),
        )


def test_one_trainers_words_become_anothers() -> None:
    nsys = ("global_profiler.tool=nsys", "global_profiler.steps=[3,4]")
    actor = [f"actor_rollout_ref.actor.profiler.{name}=True" for name in ("enable", "all_ranks")]
    done = typed("convert", "--from", "verl", "--to", "nemo_rl", "--workers", "*policy*", *nsys, *actor)
    assert done.exit_code == 0
    assert "NRL_NSYS_PROFILE_STEP_RANGE=3:5" in done.stdout.replace("'", "")
