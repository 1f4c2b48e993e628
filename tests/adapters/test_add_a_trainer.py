"""docs/add_a_trainer.md, followed word for word: its files become a wheel that is installed, its commands are
run.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlprof_ops import trainers

PAGE = Path(__file__).parents[2] / "docs" / "add_a_trainer.md"
FILE = re.compile(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
COMMANDS = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run(argv: list[str], cwd: Path, **env: str) -> str:
    full = {name: value for name, value in os.environ.items() if not name.startswith("RLPROF_")} | env
    done = subprocess.run(argv, cwd=cwd, env=full, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (argv, done.stdout, done.stderr)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page's wheel and its trainer, as `pip install` leaves them."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name, text in FILE.findall(PAGE.read_text()):
        file = (target if name == "toyrl.py" else source) / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    run([*pip, "--target", str(target), str(source)], source)
    return target


def test_the_pages_commands_profile_the_trainer(installed: Path, tmp_path: Path):
    pytest.importorskip("torch")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    [commands] = COMMANDS.findall(PAGE.read_text())
    said = run(["bash", "-ec", commands], tmp_path, PATH=path, PYTHONPATH=str(installed))

    assert said.count("rollout") == 4 and "is left as it is" not in said and "is not followed" not in said
    assert "export TOY_PROFILE_STEPS=2:4" in said
    events = [
        json.loads(line)
        for file in tmp_path.rglob("events/*.jsonl")
        for line in file.read_text().splitlines()
    ]
    steps = [event for event in events if event["event"] == "step"]
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert [phase[0] for phase in steps[1]["phases"]] == ["rollout", "update"]
    [closed] = [event for event in events if event["event"] == "closed"]
    assert closed["steps"] == [2, 3] and closed["seen"] == [2]


def test_its_dialect_is_one_of_ours(installed: Path, tmp_path: Path):
    code = (
        "from rlprof_ops import trainers\n"
        "from rlprof_ops.request import request_from_dict\n"
        "dialect = trainers.get('toyrl')\n"
        "request = request_from_dict({'captures': [{'workers': ['trainer'], 'steps': '3:5'}]})\n"
        "assert dialect.import_(dialect.render(request, 'env').text, 'x').request == request\n"
        "print(trainers.environment())"
    )
    said = run([sys.executable, "-c", code], tmp_path, PYTHONPATH=str(installed))
    assert said == "{'RLPROF_TRAINERS': 'toyrl=rlprof_toyrl'}\n"


def test_a_trainers_package_that_fails_is_said_and_the_others_are_followed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "broken_trainer.py").write_text("raise RuntimeError('half installed')")
    monkeypatch.syspath_prepend(tmp_path)
    found = trainers.followed({"RLPROF_TRAINERS": "broken=broken_trainer,gone=no_such_package"})
    assert found == trainers.followed({}) and found
    said = capfd.readouterr().err
    assert "broken (broken_trainer) is not followed: RuntimeError: half installed" in said
    assert "gone (no_such_package) is not followed: ModuleNotFoundError" in said


@pytest.mark.parametrize("name", trainers.builtin())
def test_a_trainers_folder_declares_without_importing_anything(name: str):
    code = (
        f"import sys; import rlprof_ops.trainers; before = set(sys.modules)\n"
        f"import rlprof_ops.trainers.{name}\n"
        "print(*(set(sys.modules) - before))"
    )
    assert run([sys.executable, "-c", code], Path.cwd()).split() == [f"rlprof_ops.trainers.{name}"]
