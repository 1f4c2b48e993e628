"""What is remembered of trials across jobs, and what of others is not believed."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest

from rlprof_ops.backends import trial_memory
from rlprof_ops.backends.option_trial import Trials

SCRIPT = '#!/bin/bash\necho x >> "$1"; [ "$2" = works ] || { echo "unrecognised option"; exit 1; }\n'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    path = tmp_path / "profiler"
    path.write_text(SCRIPT)
    path.chmod(0o755)
    return path


def runs_after_a_job(tool: Path, word: str = "works") -> int:
    """How often `tool` has run in all when one more job, which remembers nothing itself, has tried it."""
    runs = tool.with_name("runs")
    command = [str(tool), str(runs), word]
    reason = asyncio.run(Trials().reason_against((word,), command, dict(os.environ), tool=str(tool)))
    assert (reason is None) == (word == "works")
    return len(runs.read_text().split())


def memory(home: Path) -> Path:
    return home / ".cache" / trial_memory.FOLDER / trial_memory.NAME


def test_the_next_job_does_not_try_again(home: Path, tool: Path) -> None:
    assert runs_after_a_job(tool) == 1
    assert runs_after_a_job(tool) == 1
    assert memory(home).stat().st_mode & 0o777 == 0o600
    assert memory(home).parent.stat().st_mode & 0o777 == 0o700


def test_another_image_is_tried(home: Path, tool: Path) -> None:
    assert runs_after_a_job(tool) == 1
    tool.write_text(SCRIPT + "# a later release\n")
    assert runs_after_a_job(tool) == 2


def test_another_driver_is_tried(home: Path, tool: Path, tmp_path: Path, monkeypatch) -> None:
    driver = tmp_path / "version"
    driver.write_text("550.54")
    monkeypatch.setattr(trial_memory, "_NODE", (str(driver),))
    assert [runs_after_a_job(tool), runs_after_a_job(tool)] == [1, 1]
    driver.write_text("570.86")
    assert runs_after_a_job(tool) == 2


def test_what_does_not_work_is_tried_by_each_job(home: Path, tool: Path) -> None:
    assert runs_after_a_job(tool, "other") == 1
    assert runs_after_a_job(tool, "other") == 2
    assert not memory(home).exists()


@pytest.mark.parametrize(
    "content", ["", "{", "[" * 100_000, "[]", '{"schema": 1, "worked": 7}', "\0" * 9, " " * 100_000]
)
def test_a_damaged_memory_is_none_and_is_mended(home: Path, tool: Path, content: str) -> None:
    runs_after_a_job(tool)
    memory(home).write_text(content)
    assert runs_after_a_job(tool) == 2
    assert runs_after_a_job(tool) == 2


@pytest.mark.parametrize(
    "when", [0, -trial_memory.KEPT_S - 60, 1e6, "now", None], ids=["never", "old", "to come", "word", "none"]
)
def test_an_old_or_impossible_memory_is_none(home: Path, tool: Path, when: object) -> None:
    """`when`: seconds from now, but 0."""
    runs_after_a_job(tool)
    when = when + time.time() if isinstance(when, float) and when else when
    told = json.loads(memory(home).read_text())
    memory(home).write_text(json.dumps({**told, "worked": dict.fromkeys(told["worked"], when)}))
    assert runs_after_a_job(tool) == 2


def test_what_others_could_have_written_is_not_believed(home: Path, tool: Path, tmp_path: Path) -> None:
    runs_after_a_job(tool)
    memory(home).chmod(0o660)
    assert runs_after_a_job(tool) == 2  # and written anew
    memory(home).parent.chmod(0o770)
    assert [runs_after_a_job(tool), runs_after_a_job(tool)] == [3, 4]
    memory(home).parent.chmod(0o700)
    memory(home).rename(tmp_path / "elsewhere")
    memory(home).symlink_to(tmp_path / "elsewhere")
    assert runs_after_a_job(tool) == 5
    assert not memory(home).is_symlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_the_memory_of_another_user_is_not_believed(home: Path, tool: Path) -> None:
    runs_after_a_job(tool)
    os.chown(memory(home), 65534, 65534)
    assert runs_after_a_job(tool) == 2
    os.chown(memory(home).parent, 65534, 65534)
    assert runs_after_a_job(tool) == 3


@pytest.mark.parametrize("where", ["/proc/nowhere", "relative", ""])
def test_without_a_home_that_takes_files_each_job_tries(tool: Path, monkeypatch, where: str) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", where)
    assert [runs_after_a_job(tool), runs_after_a_job(tool)] == [1, 2]


def test_a_home_that_hangs_holds_nothing_up(tool: Path, home: Path, monkeypatch) -> None:
    monkeypatch.setattr("rlprof_ops.backends.option_trial._MEMORY_S", 0.2)
    monkeypatch.setattr(trial_memory, "knows", lambda key: time.sleep(3))
    assert runs_after_a_job(tool) == 1


def test_the_memory_stays_small(home: Path) -> None:
    for number in range(3):
        trial_memory.remember(f"{number:064x}")
    assert all(trial_memory.knows(f"{number:064x}") for number in range(3))
    many = {f"{number:064x}": time.time() - number for number in range(trial_memory._MOST_ENTRIES + 5)}
    memory(home).write_text(json.dumps({"schema": 1, "worked": many}))
    trial_memory.remember("f" * 64)
    assert len(json.loads(memory(home).read_text())["worked"]) == trial_memory._MOST_ENTRIES
    assert trial_memory.knows("f" * 64) and memory(home).stat().st_size < 64 << 10
