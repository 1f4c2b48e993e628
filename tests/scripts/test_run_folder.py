"""The run folder is the job's own: made once, never taken over, whoever else may write where it lies."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import stat
import struct
import subprocess
from pathlib import Path

import pytest
from tests.hung import hung
from tests.needs import need
from tests.strange_storage import strange

from rlprof_ops.errors import UsageError
from rlprof_ops.job.folders import RunFolder
from rlprof_ops.runtime.on_demand import watcher

LIB = Path(__file__).parents[2] / "scripts" / "lib"
NOBODY = pwd.getpwnam("nobody").pw_uid
MAKE = f"""
set -euo pipefail
source {LIB}/common.sh
source {LIB}/job.sh
slurm::record_run_folder() {{ :; }}
job::_remember() {{ :; }}
umask "${{MASK:-0022}}"
job::run_folder
printf '%s' "${{RLPROF_RUN_DIR}}"
"""


def make(base: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", MAKE],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "SLURM_JOB_ID": "4711",
            "SLURM_SUBMIT_DIR": str(home),
            "BASE_LOG_DIR": base,
            **env,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def modes(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder.parent)): stat.S_IMODE(path.lstat().st_mode)
        for path in (folder, *folder.rglob("*"))
    }


def test_it_is_made_for_its_user_alone(tmp_path):
    done = make(str(tmp_path), tmp_path)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout)
    assert modes(folder) == {
        "4711-logs": 0o750,
        "4711-logs/logs": 0o750,
        "4711-logs/.secrets": 0o700,
        "4711-logs/.secrets/ray_token": 0o600,
        "4711-logs/control": 0o700,
    }
    assert RunFolder(folder).read_token() == (folder / ".secrets/ray_token").read_text()
    assert len(RunFolder(folder).read_token()) == 64


def test_a_stricter_umask_stays(tmp_path):
    done = make(str(tmp_path), tmp_path, MASK="0077")
    assert set(modes(Path(done.stdout)).values()) == {0o700, 0o600}, done.stderr


@pytest.mark.parametrize("submitted", [False, True])
def test_a_default_acl_lets_nobody_in(tmp_path, submitted):
    """`setfacl -d -m g::rwx` on a project's folder: it takes the umask's place for all that is made below."""
    rights = ((1, 7), (4, 7), (16, 7), (32, 5))  # acl(5): user::rwx group::rwx mask::rwx other::r-x
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *each, 0xFFFFFFFF) for each in rights)
    try:
        os.setxattr(tmp_path, "system.posix_acl_default", acl)
    except OSError as error:
        pytest.skip(f"no ACLs here: {error}")
    if submitted:
        (tmp_path / "4711-logs").mkdir(mode=0o750)
        (tmp_path / "4711-logs/.secrets").mkdir(mode=0o700)
    done = make(str(tmp_path), tmp_path)
    assert done.returncode == 0, done.stderr
    found = modes(Path(done.stdout))
    assert found["4711-logs"] == found["4711-logs/logs"] == 0o750
    assert len(RunFolder(Path(done.stdout)).read_token()) == 64, "it checks the others"


def test_a_folder_that_is_there_is_never_used_again(tmp_path):
    """The same number twice: two clusters, or a Slurm that counts from the beginning."""
    first = make(str(tmp_path), tmp_path)
    (Path(first.stdout) / "run.json").write_text("the first job's")
    before = {path: path.read_bytes() for path in Path(first.stdout).rglob("*") if path.is_file()}
    again = make(str(tmp_path), tmp_path)
    assert again.returncode == 1
    assert "it is there already, from another job of this number" in again.stderr
    assert before == {path: path.read_bytes() for path in Path(first.stdout).rglob("*") if path.is_file()}
    assert make(str(tmp_path), tmp_path, SLURM_RESTART_COUNT="1").stdout.endswith("/4711.r1-logs")


def test_what_submit_has_prepared_is_used(tmp_path):
    secrets = tmp_path / "4711-logs/.secrets"
    (tmp_path / "4711-logs").mkdir(mode=0o750)
    secrets.mkdir(mode=0o700)
    (secrets / "submit.json").write_text("{}")
    assert make(str(tmp_path), tmp_path).returncode == 0
    assert (secrets / "ray_token").exists() and (secrets / "submit.json").exists()


@pytest.mark.parametrize("trap", ["folder", "secrets", "token", "open", "link"])
def test_somebody_elses_folder_is_refused(tmp_path, trap):
    need("root")
    folder, secrets = tmp_path / "4711-logs", tmp_path / "4711-logs/.secrets"
    if trap == "link":
        (tmp_path / "elsewhere").mkdir()
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir(mode=0o777 if trap == "open" else 0o750)
        folder.chmod(0o777 if trap == "open" else 0o750)
        secrets.mkdir(mode=0o700)
    if trap == "token":
        (secrets / "ray_token").write_text("known")
    if trap == "folder":
        os.chown(folder, NOBODY, -1)
    if trap == "secrets":
        os.chown(secrets, NOBODY, -1)
    done = make(str(tmp_path), tmp_path)
    assert done.returncode == 1 and "cannot be made" in done.stderr
    assert not (folder / "logs").exists()


@pytest.mark.parametrize(("base", "place"), [("~/runs", "runs"), ("runs/deep", "runs/deep"), ("~", ".")])
def test_a_base_that_no_shell_has_expanded(tmp_path, base, place):
    done = make(base, tmp_path)
    assert Path(done.stdout).resolve() == (tmp_path / place / "4711-logs").resolve(), done.stderr


@pytest.mark.parametrize("what", ["", ".secrets", ".secrets/ray_token", "control"])
@pytest.mark.parametrize("how", ["owner", "mode"])
def test_every_read_looks_whose_it_is(tmp_path, what, how):
    need("root")
    run = RunFolder(Path(make(str(tmp_path), tmp_path).stdout))
    path = run.path / what
    if how == "owner":
        os.chown(path, NOBODY, -1)
    else:
        path.chmod(path.stat().st_mode | 0o022)
    words = "belongs to user" if how == "owner" else "which lets others in"
    with pytest.raises(UsageError, match=words):
        run.read_token()


@contextlib.contextmanager
def silent(folder):
    """A folder that answers nobody; SIGKILL ends who asks."""
    folder.mkdir()
    with hung(folder):
        yield folder


@contextlib.contextmanager
def dead(folder):
    """The same, and SIGKILL does not."""
    with strange(folder, folder.with_name("backing"), "holds=run"):
        yield folder / "run"


@pytest.mark.parametrize("storage", [silent, dead])
def test_a_batch_script_ends_although_its_storage_hangs(tmp_path, storage):
    """A node's task has failed, and the run folder answers nobody: the allocation is not held for that."""
    need("fuse")
    patient = "_RLPROF_STORAGE_SECONDS=15"
    library = (LIB / "job.sh").read_text()
    assert patient in library
    (tmp_path / "job.sh").write_text(library.replace(patient, "_RLPROF_STORAGE_SECONDS=1"))
    script = f"""
set -euo pipefail
source {LIB}/common.sh
source {LIB}/slurm.sh
source {tmp_path}/job.sh
scontrol() {{ echo n1; }}
SRUN=(sh -c 'echo "srun: error: n1: task 0: Exited with exit code 3" >&2; exit 3')
job::run
"""
    with storage(tmp_path / "shared") as run:
        env = {"RLPROF_RUN_DIR": str(run), "RLPROF_NODES": "n1 n2", "RLPROF_NODE_ROOT": "/tmp"}
        done = subprocess.run(
            ["bash", "-c", script],
            env={"PATH": os.environ["PATH"], **env},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
    assert done.returncode == 3
    assert f"the storage of {run} does not answer: what it did not take is on the nodes" in done.stderr


def test_a_token_that_is_a_link_is_not_read(tmp_path):
    run = RunFolder(Path(make(str(tmp_path), tmp_path).stdout))
    (tmp_path / "mine").write_text("known")
    run.token.unlink()
    run.token.symlink_to(tmp_path / "mine")
    with pytest.raises(OSError):
        run.read_token()


@pytest.mark.parametrize("identity", ["../../x", ".hidden", "", "a/b", "a\nb", "x" * 200])
def test_an_id_that_would_leave_its_folder_is_no_request(identity):
    asked = watcher.CaptureRequest("x", ("*",), None, "auto", {}, 1, None)
    text = asked.to_json().replace('"id": "x"', f'"id": {json.dumps(identity)}')
    with pytest.raises(ValueError, match="is no plain word"):
        watcher.CaptureRequest.from_json(text)


def test_a_request_of_another_user_is_left_out(tmp_path):
    need("root")
    for name in ("x", "y"):
        path = watcher.leave(tmp_path, watcher.CaptureRequest(name, ("*",), None, "auto", {}, 1, None))
    os.chown(path, NOBODY, -1)
    assert [request.id for request in watcher.new_requests(tmp_path, set())] == ["x"]


def test_the_batch_script_uses_no_folder_that_took_the_run_folders_name(tmp_path):
    look = (
        MAKE
        + """
job::_storage_answers && echo " own"
mv -- "${RLPROF_RUN_DIR}" "${RLPROF_RUN_DIR}.aside"
mkdir -- "${RLPROF_RUN_DIR}"
job::_storage_answers || echo another
job::_task_ended n1 'died' 'words'
rmdir -- "${RLPROF_RUN_DIR}"
job::_storage_answers && echo gone
mv -- "${RLPROF_RUN_DIR}.aside" "${RLPROF_RUN_DIR}"
job::_storage_answers && echo back
"""
    )
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SLURM_JOB_ID": "4711"}
    env |= {"SLURM_SUBMIT_DIR": str(tmp_path), "BASE_LOG_DIR": str(tmp_path), "RLPROF_NODES": "n0 n1"}
    done = subprocess.run(
        ["bash", "-c", look], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split()[1:] == ["own", "another", "gone", "back"], done
    assert f"{tmp_path}/4711-logs has been replaced" in done.stderr


def test_no_secret_is_written_into_a_folder_that_took_the_run_folders_name(tmp_path):
    """Where others may rename in the folder above, between the making of the folder and that of its token."""
    need("root")
    strangers = tmp_path / "strangers"
    strangers.mkdir(mode=0o777)
    os.chown(strangers, NOBODY, -1)
    swap = """
mkdir() {
    command mkdir "$@" || return
    [[ ${*: -1} != "${RLPROF_RUN_DIR}" ]] || { mv -- "${RLPROF_RUN_DIR}" "${RLPROF_RUN_DIR}.aside"; mv -- "${STRANGERS}" "${RLPROF_RUN_DIR}"; }
}
"""  # noqa: E501
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SLURM_JOB_ID": "4711"}
    env |= {"SLURM_SUBMIT_DIR": str(tmp_path), "BASE_LOG_DIR": str(tmp_path), "RLPROF_NODES": "n0"}
    done = subprocess.run(
        ["bash", "-c", MAKE.replace("job::run_folder", swap + "job::run_folder", 1)],
        env=env | {"STRANGERS": str(strangers)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1 and "belongs to somebody else" in done.stderr, done
    assert not list((tmp_path / "4711-logs").iterdir())


def test_the_logs_of_the_jobs_end_stay_in_the_run_folder_when_its_name_passes_to_another(tmp_path):
    look = (
        MAKE
        + """
mv -- "${RLPROF_RUN_DIR}" "${RLPROF_RUN_DIR}.aside"
mkdir -p -- "${RLPROF_RUN_DIR}/logs"
job::_again() { echo "salvage says"; }
job::record_bad_start 1
"""
    )
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SLURM_JOB_ID": "4711"}
    env |= {"SLURM_SUBMIT_DIR": str(tmp_path), "BASE_LOG_DIR": str(tmp_path), "RLPROF_NODES": "n0"}
    subprocess.run(["bash", "-c", look], env=env, capture_output=True, text=True, timeout=120, check=True)
    assert (tmp_path / "4711-logs.aside/logs/salvage.log").read_text() == "salvage says\n"
    assert not list((tmp_path / "4711-logs/logs").iterdir())
