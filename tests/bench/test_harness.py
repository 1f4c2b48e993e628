"""The harness of the benchmarks, and that each benchmark and each command in the docs fits it."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Literal

import pytest
from tests.bench import harness
from tests.needs import need

DOCS = [*(harness.ROOT / "docs").glob("*.md"), harness.ROOT / "tests/bench/README.md"]
COMMAND = re.compile(r"python -m tests\.bench ([a-z_.]+)([^`\n]*)`")
FOR_A_PERSON = re.compile(r"<[^>]*>")  # a value that only who runs it knows

# What a test of its own runs, what needs inputs from outside, and what takes a job, a cluster or a trainer.
ELSEWHERE = {"analyze", "metadata", "off", "recorder.pairs", "recorder.turns", "scale", "torch_fr"}
WHOLE_MACHINE = {"slurm", "ray", "nsys"}
SLOW = {"diff", "hang", "sync"}  # ten seconds and more of a core


def load(name: str) -> ModuleType:
    try:
        return importlib.import_module(harness.names()[name])
    except ModuleNotFoundError as error:  # an older Python has not every library
        pytest.skip(f"{name}: {error}")


@pytest.mark.parametrize("name", harness.names())
def test_a_benchmark_says_what_it_measures_and_its_short_form_has_its_own_options(name: str) -> None:
    module = load(name)
    about = (module.__doc__ or "").splitlines()
    assert about[0].endswith((".", "?")) and about[1:2] in ([""], []), about[:2]
    options = harness.parser(name, module).parse_args([])
    assert set(module.QUICK) <= set(vars(options))


@pytest.mark.whole
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long) if name in SLOW else name
        for name in sorted(set(harness.names()) - ELSEWHERE)
    ],
)
def test_the_short_form_works(name: str, tmp_path: Path) -> None:
    needs = set(getattr(load(name), "NEEDS", ()))
    if needs & WHOLE_MACHINE:
        return
    need(*needs)
    assert harness.main([name, "--quick", "--folder", str(tmp_path)]) == 0


def test_every_command_of_the_docs_is_one() -> None:
    found = [match for path in DOCS for match in COMMAND.finditer(path.read_text())]
    assert len({match[1] for match in found}) >= 15
    for match in found:
        words = shlex.split(FOR_A_PERSON.sub("given", match[2]))
        harness.parser(match[1], load(match[1])).parse_args(words)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """A benchmark `made`, and what it was called with."""
    called: dict[str, object] = {}

    def bench(
        run: harness.Run,
        *,
        sizes: tuple[int, ...] = (3, 4),
        most_s: float = 2.0,
        only: Literal["a", "b"] | None = None,
        price: bool = False,
    ) -> None:
        called.update(sizes=sizes, most_s=most_s, only=only, price=price, is_there=run.folder.is_dir())
        run.head("side", "seconds")
        run.row("ours", 1.5)
        run.limit("time", 1.5, most_s, "s")

    module = ModuleType("made", "What is made.")
    module.bench, module.QUICK = bench, {"sizes": (1,)}  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made", module)
    monkeypatch.setattr(harness, "names", lambda: {"made": "made"})
    return called


def test_options_come_from_the_signature_and_what_is_found_goes_to_a_file(made, tmp_path, capsys) -> None:
    path = tmp_path / "found.json"
    words = ["--sizes", "5,6", "--most-s", "1", "--only", "b", "--price", "--json", str(path)]
    assert harness.main(["made", *words]) == 1
    assert made == {"sizes": (5, 6), "most_s": 1.0, "only": "b", "price": True, "is_there": True}
    said = capsys.readouterr().out
    assert "again: python -m tests.bench made --sizes 5,6" in said
    assert "| ours | 1.5     |" in said and "MISSED: time: 1.5 s, at most 1 s" in said
    found = json.loads(path.read_text())
    assert found["missed"] == ["time: 1.5 s, at most 1 s"] and found["options"]["only"] == "b"
    assert found["found"]["tables"] == [{"head": ["side", "seconds"], "rows": [["ours", "1.5"]]}]
    assert harness.main(["made", "--quick", "--most-s", "1"]) == 0 and made["sizes"] == (1,)


def test_what_the_machine_lacks_leaves_a_benchmark_out(made, monkeypatch, capsys) -> None:
    sys.modules["made"].NEEDS = ("no_such_module",)  # type: ignore[attr-defined]
    assert harness.main(["made"]) == 0 and not made
    assert "left out: no module no_such_module" in capsys.readouterr().out


def test_a_word_that_is_no_benchmark_shows_the_list(capsys) -> None:
    assert harness.main(["hung"]) == 2
    assert re.search(r"^hang +How long `rlprof hang` takes", capsys.readouterr().out, re.M)


def test_sides_take_turns_and_their_ratio_is_that_of_pairs() -> None:
    calls: list[str] = []
    found = harness.by_turns(
        {name: lambda name=name: calls.append(name) or len(calls) for name in ("a", "b")}, 3
    )
    assert calls == ["a", "b", "b", "a", "a", "b"]
    assert found == {"a": [1, 4, 5], "b": [2, 3, 6]}
    assert harness.ratio([2.0, 3.0, 8.0], [1.0, 1.0, 2.0]) == (3.0, "3.000 (2.000 to 4.000)")


def test_a_command_that_fails_ends_the_run_with_what_it_printed(tmp_path: Path) -> None:
    program = "import sys; print('said'); sys.exit(int(sys.argv[1]))"
    cost = harness.spend([sys.executable, "-c", program, "0"])
    assert cost.output == "said\n" and cost.peak_gib > 0 and cost.wall_s > 0
    with pytest.raises(SystemExit, match=r"ended with 7:\nsaid"):
        harness.spend([sys.executable, "-c", program, "7"])
