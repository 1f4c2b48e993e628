"""What the documents say can be typed: every command, option, script, make target, knob and link in them
exists.
"""

from __future__ import annotations

import re
import shlex

import click
import pytest
from tests.docs.typed import DOCUMENTS, HOME, Document

from rlprof_ops.cli import cli
from rlprof_ops.job.knobs import read_knobs

_BLOCK = re.compile(r"^```(?:bash|console|sh)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=")
# Variables in our examples that are other programs' own.
FOREIGN = {"PATH", "PYTHONPATH", "HF_HOME", "WANDB_API_KEY", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"}
# What decides which tests are run: of the checkout, not of a job.
OF_TESTS = {"RLPROF_TESTS", "RLPROF_TESTS_REQUIRE", "RLPROF_TESTS_JOBS"}


def command_lines(text: str) -> list[list[str]]:
    """The words of every command in the shell blocks of a document; `$ ` prompts and comments dropped."""
    found = []
    for block in _BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            line = line.strip().removeprefix("$ ")
            if line and not line.startswith("#"):
                try:
                    found.append(shlex.split(line, comments=True))
                except ValueError:
                    continue  # a piece of a longer quotation
    return [words for words in found if words]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda page: page.name)
def test_commands_exist(document):
    for words in command_lines(document.text):
        while words and _ASSIGNMENT.match(words[0]):
            variable = words.pop(0).partition("=")[0]
            known = variable in read_knobs() or variable in FOREIGN | OF_TESTS or variable.startswith("NRL_")
            assert known, f"{document.name}: {variable} is no knob"
        if words:
            check_command(document, words)


def check_command(document: Document, words: list[str]) -> None:
    if words[:3] == ["python", "-m", "rlprof_ops"] or words[:3] == ["python3", "-m", "rlprof_ops"]:
        words = ["rlprof", *words[3:]]
    if words[0] == "rlprof" and len(words) > 1 and not words[1].startswith("-"):
        check_rlprof(document, words[1:])
    elif words[0] == "make":
        assert re.search(rf"^{words[1]}:", (HOME / "Makefile").read_text(), re.MULTILINE), (
            f"{document.name}: make {words[1]}"
        )
    for word in words:
        if (
            re.fullmatch(r"(?:\./)?(?:scripts|env|tests)/[\w./-]+\.(?:sh|py|env)", word)
            and "site.env" not in word
        ):
            assert (HOME / word).is_file(), f"{document.name}: {word}"


def check_rlprof(document: Document, words: list[str]) -> None:
    context = click.Context(cli)
    command = cli.get_command(context, words[0])
    assert command is not None, f"{document.name}: rlprof {words[0]} is no command"
    try:
        command.make_parser(click.Context(command, info_name=words[0])).parse_args(list(words[1:]))
    except click.UsageError as error:
        raise AssertionError(
            f"{document.name}: rlprof {shlex.join(words)}: {error.format_message()}"
        ) from None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda page: page.name)
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.text):
        if "://" not in target:
            assert (document.path.parent / target).exists(), f"{document.name}: {target}"


def test_each_question_of_where_to_look_is_answered_by_its_file():
    table = (HOME / "docs/how.md").read_text().partition("### Where to look")[2].partition("\n## ")[0]
    answers = re.findall(r"`([a-z][\w/]*(?:/|\.py))`(?: \(((?:`\w+`(?:, )?)+)\))?", table)
    assert len(answers) >= 8, "at least one file a row"
    for file, names in answers:
        path = HOME / "python/rlprof_ops" / file
        assert path.exists(), file
        for name in re.findall(r"\w+", names):
            assert re.search(rf"^\s*(?:async )?def {name}\(", path.read_text(), re.MULTILINE), (
                f"{file}: {name}"
            )


def test_every_command_has_an_example_and_fits_a_screen():
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        text = command.get_help(click.Context(command, info_name=name))
        assert "Example" in text, name
        assert len(text.splitlines()) <= 50, name


def test_the_list_of_commands_cuts_no_sentence():
    text = cli.get_help(click.Context(cli, info_name="rlprof")).partition("Start with:\n")[2]
    listed = [line for line in text.splitlines() if line.startswith("  ")]
    assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []
    assert len(listed) == len(cli.list_commands(click.Context(cli)))


def test_a_misspelt_command_is_answered_with_the_nearest(capsys):
    with pytest.raises(click.UsageError, match="Did you mean 'harvest'"):
        cli.resolve_command(click.Context(cli), ["harvst"])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda page: page.name)
def test_the_tests_that_a_page_names_exist(document):
    named = set(re.findall(r"`(tests/[\w./-]+\.py)", document.text))
    missing = sorted(name for name in named if not (HOME / name).is_file())
    assert not missing, f"{document.name}: {', '.join(missing)}"
