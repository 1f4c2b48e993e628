"""Every command's mistakes end as documented in docs/operators.md: 2 usage, 1 failed, 3 incomplete; each
message names the way on.
"""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from rlprof_ops.cli import cli, main

CONTEXT = click.Context(cli)
NAMES = cli.list_commands(CONTEXT)
# What a command needs so that its options are looked at.
ARGUMENTS = {
    "attach": ["4711"],
    "convert": ["x"],
    "diff": ["a", "b"],
    "init": ["x"],
    "plan": ["x"],
    "wrap": ["--", "true"],
}
JOB = {
    "attach",
    "capture",
    "dashboard",
    "hang",
    "harvest",
    "logs",
    "report",
    "stacks",
    "status",
    "stop",
    "timeline",
}
PASSES_ON = {"submit": "--dry-run", "retry": "--dry-run"}  # what is not nearly theirs is sbatch's
FIRST = {"retry"}  # whose job stands before options
NONE = {"attach", "completion", "schema"}  # no long option of its own but --help


def run(capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    shown = capfd.readouterr()
    return int(ended.value.code or 0), shown.err + shown.out


def long_option(name: str) -> str:
    command = cli.get_command(CONTEXT, name)
    assert command is not None
    longs = [
        opt
        for param in command.params
        if isinstance(param, click.Option)
        for opt in param.opts
        if opt.startswith("--") and len(opt) > 5
    ]
    return max(longs, key=len, default="")


@pytest.mark.parametrize("name", NAMES)
def test_a_misspelt_option_is_answered_with_the_right_one(name, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wanted = PASSES_ON.get(name) or long_option(name)
    if not wanted:
        assert name in NONE
        wanted = "--help"
    wrong = wanted[:-2] + wanted[-1] + wanted[-2]
    if wrong == wanted:
        wrong = wanted[:-1]
    arguments = ARGUMENTS.get(name, ["4711"])
    code, said = run(capfd, name, *([*arguments, wrong] if name in FIRST else [wrong, *arguments]))
    assert code == 2, said
    assert wanted in said, said


@pytest.mark.parametrize("name", sorted(JOB | {"retry"}))
def test_a_job_that_nobody_knows_is_a_usage_error(name, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    options = ["--workers", "w", "--steps", "next:1"] if name == "capture" else []
    code, said = run(capfd, name, "4711", *options)
    assert code == 2, said
    assert "4711" in said


@pytest.mark.parametrize("name", ["", *NAMES])
def test_help_fits_a_screen_and_shows_a_call(name):
    said = CliRunner().invoke(cli, [*name.split(), "--help"], prog_name="rlprof")
    assert said.exit_code == 0
    assert said.output.count("\n") <= 50
    below_the_usage = said.output.split("Options:")[0].split("\n", 1)[1]
    assert f"rlprof {name}".strip() in below_the_usage


def test_every_command_is_in_the_list():
    listed = CliRunner().invoke(cli, ["--help"]).output
    assert all(f"\n  {name} " in listed for name in NAMES)
