"""What reads reports writes into folders of its own alone, and over no file that rlprof did not write."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.analyze.fake_run import make_run
from tests.command_line import Ended, run_command


def rlprof(*words: str | Path, cwd: Path) -> Ended:
    return run_command(tuple(map(str, words)), cwd)


def content(folder: Path) -> dict[str, bytes | str]:
    """Every file and link below a folder."""
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with its report and its timeline."""
    run = make_run(tmp_path_factory.mktemp("made") / "4711-logs", steps=(3,), kernels=4)
    (run / "logs").mkdir()
    (run / "logs" / "driver.log").write_text("step 1\n")
    (run / "manifest.json").write_text('{"schema": 1, "job": "4711", "captures": [], "reports": []}')
    for command in ("report", "timeline"):
        done = rlprof(command, run, "-j", "1", cwd=run.parent)
        assert done.code == 0, done.said
    return run


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "4711-logs", symlinks=True)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The current folder."""
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


def test_report_of_what_is_no_report_writes_nothing(here, tmp_path):
    for name, data in {
        "passwd": b"root:x:0:0\n",
        "notes.json": b'{"a": 1}',
        "base.sqlite": b"no database",
        "x.pt.trace.json.gz": b"no gzip",
        "empty.nsys-rep": b"",
    }.items():
        (tmp_path / name).write_bytes(data)
    os.mkfifo(tmp_path / "pipe.json")
    os.mkfifo(tmp_path / "pipe.pt.trace.json")
    (tmp_path / "gone.json").symlink_to("nowhere")
    before = content(here)
    theirs = [each for each in tmp_path.iterdir() if each != here]
    for path in (*theirs, Path("/etc/passwd"), Path("/dev/null")):
        for command in ("report", "timeline", "diff"):
            more = (path,) if command == "diff" else ()
            done = rlprof(command, path, *more, cwd=here)
            allowed = (1, 2) if command == "timeline" else (2,)
            assert done.code in allowed, (command, path, done.said)
            assert str(path) in done.said.replace("\n", "") and "Traceback" not in done.said
    assert content(here) == before
    assert not [*tmp_path.glob("report.*"), *tmp_path.glob("timeline.*"), *Path("/etc").glob("report.*")]


@pytest.mark.parametrize(
    "record", ["manifest.json", "run.json", "report.json", "report.html", "logs/driver.log"]
)
def test_a_record_of_a_run_folder_means_its_run(run, here, record):
    before = json.loads((run / "report.json").read_text())
    done = rlprof("report", run / record, "-j", "1", cwd=here)
    assert done.code == 0, done.said
    after = json.loads((run / "report.json").read_text())
    assert after["ranks"] == before["ranks"] and len(after["ranks"]) == 3
    assert list(here.iterdir()) == []


def test_reports_of_somebody_else_are_answered_here_and_their_folder_stays(run, here, tmp_path):
    theirs = tmp_path / "theirs"
    shutil.copytree(run / "profiles", theirs)
    for path in list(theirs.rglob("*.parquet")):
        path.unlink()
    one = next(theirs.rglob("*.json.gz"))
    before = content(tmp_path / "theirs")
    for command, root in (("report", theirs), ("report", one), ("timeline", theirs), ("report", theirs)):
        done = rlprof(command, root, "-j", "1", cwd=here)
        assert done.code == 0, done.said
    assert content(theirs) == before
    assert {path.name for path in here.iterdir()} == {
        "report.html", "report.json", "timeline.overview.pftrace", "timeline.ranks.zip",
    }  # fmt: skip
    assert json.loads((here / "report.json").read_text())["run"]["path"] == str(theirs)


def test_one_report_of_a_run_does_not_replace_the_answer_about_the_run(run):
    one = next((run / "profiles").rglob("*.json.gz"))
    before = content(run)
    done = rlprof("report", one, "-j", "1", cwd=run)
    assert done.code == 2 and "job 4711" in done.said and "--output" in done.said
    assert content(run) == before


@pytest.mark.parametrize("kind", ["file", "link", "dangling", "folder"])
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("report",), ("report.html", "report.json")),
        (
            ("timeline", "--legacy-json"),
            ("timeline.overview.pftrace", "timeline.ranks.zip", "timeline.legacy.json.gz"),
        ),
        (("diff", "--page", "out/page.html"), ("page.html",)),
    ],
)
def test_no_file_that_rlprof_did_not_write_is_replaced(run, here, kind, words, names):
    target = here / "out"
    for name in names:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        path = target / name
        if kind == "file":
            path.write_text('<html><title>pytest report of rlprof-ops</title> {"results": []}')
        elif kind == "folder":
            path.mkdir()
        else:
            (here / "precious").write_text("precious")
            path.symlink_to("../precious" if kind == "link" else "nowhere")
        before = content(here)
        command, *options = words
        more = (run,) if command == "diff" else ("-o", target, "-j", "1")
        done = rlprof(command, run, *more, *options, cwd=here)
        assert done.code == 2, (name, done.said)
        assert name in done.said and "Traceback" not in done.said
        assert content(here) == before


@pytest.mark.parametrize(
    "words",
    [
        ("report", "-o", "out"),
        ("timeline", "--legacy-json", "-o", "out"),
        ("diff", "--page", "out/page.html"),
    ],
)
def test_what_rlprof_wrote_is_replaced(run, here, words):
    (here / "out").mkdir()
    command, *options = words
    for _ in range(2):
        done = rlprof(command, run, *((run,) if command == "diff" else ()), *options, cwd=here)
        assert done.code == 0, done.said


def test_a_folder_that_cannot_be_made_is_said(run, here):
    (here / "plain").write_text("")
    done = rlprof("report", run, "-o", here / "plain" / "out", cwd=run.parent)
    assert done.code == 1 and "--output" in done.said and "plain/out" in done.said.replace("\n", "")
