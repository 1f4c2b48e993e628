"""What people mistype, and jobs in every wrong state: each mistake has its exit code and a message that names
what is wrong and the way on; none a traceback, none silent, none that sends back to the same command.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.operate.mistakes import MISTAKES
from tests.operate.test_submit import run

HOME = Path(__file__).parents[2]


@pytest.fixture
def desk(fake, run_folder, tmp_path):
    """A shell with a finished job 4711 that Slurm has forgotten, 97 in the queue, 98 of another program."""
    run_folder.record(cause="driver_exit", exit_code=0)
    run_folder.manifest(("policy_worker", 0, 3, 5, "missing"))
    fake.show("97", "PENDING")
    fake.show("98", "RUNNING", Command="/home/ann/train.sh")
    work = run_folder.path.parent
    (work / "folder").mkdir()
    (work / "zero.yaml").write_text('captures: [{workers: [w], steps: "0:10"}]\n')
    (work / "broken.yaml").write_text("captures: [\n")
    (work / "key.yaml").write_text('capture: [{workers: [w], steps: "3:5"}]\n')
    (work / "backend.yaml").write_text('captures: [{backend: nsigth, workers: [w], steps: "3:5"}]\n')
    return fake


def shown(value: object) -> str:
    return " ".join(value)[:60] if isinstance(value, list) else ""


@pytest.mark.parametrize(("words", "code", "part"), MISTAKES, ids=shown)
def test_a_mistake_has_a_code_and_a_way_on(desk, capfd, words, code, part):
    found = run(*words)
    said = capfd.readouterr()
    assert found == code, said
    assert part in said.err, said
    assert "Traceback" not in said.err
    assert f"rlprof {' '.join(words)}\n" not in said.err, "a circle"
    assert desk.called("sbatch") == []


def test_there_are_eighty_of_them_and_none_may_be_silent():
    assert len({tuple(words) for words, _, _ in MISTAKES}) >= 80
    assert [words for words, code, part in MISTAKES if not part or code == 0] == []


@pytest.mark.parametrize("place", [
    {"PYTHONIOENCODING": "ascii"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"COLUMNS": "30"},
    {"HOME": "/nonexistent", "XDG_STATE_HOME": ""},
], ids=["ascii alone", "no UTF-8 anywhere", "narrow", "no home"])  # fmt: skip
def test_so_it_is_wherever_it_is_typed(desk, place):
    """One process types them all."""
    lines = [words for words, _, _ in MISTAKES]
    done = subprocess.run(
        [sys.executable, "-m", "tests.command_line"], input=json.dumps(lines), capture_output=True, text=True,
        env={**os.environ, **place, "PYTHONPATH": f"{HOME}:{HOME / 'python'}"}, timeout=240, check=True,
    )  # fmt: skip
    ends = zip(MISTAKES, json.loads(done.stdout), strict=True)
    # A narrow terminal breaks the lines of click's own messages anywhere.
    wrong = [
        (words, end, said)
        for (words, code, part), (end, said) in ends
        if end != code
        or "".join(part.split())
        not in "".join((said or done.stderr).split())  # a program of its own speaks past us
        or "Traceback" in said
    ]
    assert wrong == []
