"""A node folder is one job's: another job of this number, earlier or of another cluster, has its own."""

import os
import pwd
import subprocess
import sys

import pytest

from rlprof_ops import env_names
from rlprof_ops.errors import UsageError
from rlprof_ops.job.folders import job_mark, node_folder
from rlprof_ops.job.knobs import import_path

NAME = f"rlprof-{os.getuid()}-4711"


def mark(run, began):
    return job_mark({env_names.RUN_DIR: str(run), env_names.BEGAN: began})


def test_a_job_finds_its_own_folder_again(tmp_path):
    for _ in range(2):
        folder = node_folder(tmp_path, "4711", mark("/logs/4711-logs", "1.5"))
        folder.create()
        assert folder.path == tmp_path / NAME
        assert folder.is_this_jobs()


@pytest.mark.parametrize("written", ["/logs//4711-logs", "/logs/./4711-logs"])
def test_the_command_that_brings_reports_home_finds_it_however_the_run_folder_was_written(tmp_path, written):
    """BASE_LOG_DIR=/logs/ or ./logs: the command has the path as Python writes it."""
    made = node_folder(tmp_path, "4711", mark(written, "1.5"))
    made.create()
    assert node_folder(tmp_path, "4711", mark("/logs/4711-logs", "1.5")).path == made.path


def test_what_an_earlier_job_of_this_number_left_is_neither_used_nor_touched(tmp_path):
    earlier = node_folder(tmp_path, "4711", mark("/logs/4711-logs", "1.5"))
    earlier.create()
    (earlier.path / "events/old.jsonl").write_text("{}")
    folder = node_folder(tmp_path, "4711", mark("/logs/4711-logs", "2.5"))
    folder.create()
    assert folder.path == tmp_path / f"{NAME}~2"
    assert list((folder.path / "events").iterdir()) == []
    assert (earlier.path / "events/old.jsonl").exists()
    # Also when the earlier one has come home and gone, it stays where it was.
    again = node_folder(tmp_path, "4711", mark("/logs/4711-logs", "2.5"))
    assert again.path == folder.path


def test_two_clusters_on_one_machine_share_no_folder(tmp_path):
    folders = [node_folder(tmp_path, "4711", mark(f"/{site}/4711-logs", "1.5")) for site in ("a", "b")]
    folders[0].create()
    with pytest.raises(PermissionError, match="another job"):  # both looked before either had made it
        folders[1].create()
    other = node_folder(tmp_path, "4711", mark("/b/4711-logs", "1.5"))
    other.create()
    assert other.path != folders[0].path


@pytest.mark.parametrize("kind", ["folder", "link", "file"])
def test_a_stranger_who_takes_the_name_first_keeps_no_job_from_its_folder(tmp_path, kind):
    if os.geteuid():
        pytest.skip("only root can give a file to another user")
    taken = tmp_path / NAME
    if kind == "folder":
        taken.mkdir(mode=0o777)
        (taken / "job").write_text(mark("/logs/4711-logs", "1.5"))
    elif kind == "link":
        taken.symlink_to("/etc")
    else:
        taken.write_text("")
    user = pwd.getpwnam("nobody")
    os.chown(taken, user.pw_uid, user.pw_gid, follow_symlinks=False)
    folder = node_folder(tmp_path, "4711", mark("/logs/4711-logs", "1.5"))
    folder.create()
    assert folder.path == tmp_path / f"{NAME}~2"


def test_when_every_name_is_taken_it_says_what_to_do(tmp_path):
    for number in range(20):
        node_folder(tmp_path, "4711", mark("/logs/4711-logs", str(number))).create()
    with pytest.raises(UsageError, match=r"rlprof clean.*RLPROF_NODE_ROOT"):
        node_folder(tmp_path, "4711", mark("/logs/4711-logs", "x"))


def test_salvage_brings_home_this_jobs_files_and_leaves_the_other_ones(tmp_path):
    run = tmp_path / "4711-logs"
    (run / "logs").mkdir(parents=True)
    folders = []
    for began in ("1.5", "2.5"):
        folder = node_folder(tmp_path, "4711", mark(run, began))
        folder.create()
        (folder.path / "logs/raylet.log").write_text(f"began {began}\n")
        folders.append(folder.path)
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": import_path(),
        "RLPROF_NODE_ROOT": str(tmp_path),
        "SLURMD_NODENAME": "n1",
        env_names.JOB: "4711",
        env_names.RUN_DIR: str(run),
        env_names.BEGAN: "2.5",
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rlprof_ops.supervisor.salvage"],
        env=env, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done
    assert (run / "logs/n1/raylet.log").read_text() == "began 2.5\n"
    assert not folders[1].exists()
    assert (folders[0] / "logs/raylet.log").read_text() == "began 1.5\n"


def test_one_in_which_nothing_was_begun_goes_and_one_with_a_file_stays(tmp_path):
    folder = node_folder(tmp_path, "4711", mark("/logs/4711-logs", "1.5"))
    folder.create()
    folder.let_go()
    assert list(tmp_path.iterdir()) == []
    folder.create()
    (folder.path / "events/new.jsonl").write_text("{}")
    folder.let_go()
    assert (folder.path / "events/new.jsonl").exists() and folder.is_this_jobs()
