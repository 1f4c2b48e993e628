"""The sandbox keeps its promises: real Slurm, nodes apart from each other, faults on demand, nothing left
behind.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.sandbox import Sandbox, SandboxError
from tests.sandbox.api import REPOSITORY, TEST_USER
from tests.sandbox.box import host_pids, start_time
from tests.sandbox.spec import BASE
from tests.waits import wait_until

pytestmark = pytest.mark.slurm


def _traces(name: str) -> list[str]:
    """Everything of a sandbox that this machine still shows: folder, mounts, processes."""
    found = [str(BASE / name)] if (BASE / name).exists() else []
    found += [
        line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"{BASE / name}/" in line
    ]
    for pid in host_pids():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if f"{BASE / name}" in words:
            found.append(f"{pid}: {words}")
    return found


def _namespaces(sandbox: Sandbox) -> set[str]:
    pids = [
        process.host_pid
        for node in ("login", *sandbox.nodes)
        for process in sandbox.processes(node, daemons=True)
    ]
    return {os.readlink(f"/proc/{pid}/ns/{kind}") for pid in pids for kind in ("net", "pid", "mnt")}


def _namespaces_in_use(before: float) -> set[str]:
    """Of processes that began before (seconds since boot): the kernel gives the number of one that is gone to
    the next that is made, be it of another test.
    """
    found = set()
    for pid in host_pids():
        if (start_time(pid) or 0) / os.sysconf("SC_CLK_TCK") > before:
            continue
        for kind in ("net", "pid", "mnt"):
            try:
                found.add(os.readlink(f"/proc/{pid}/ns/{kind}"))
            except OSError:
                continue
    return found


def _links() -> set[str]:
    return set(os.listdir("/sys/class/net"))


def _gone(name: str) -> list[str]:
    wait_until(lambda: not _traces(name))
    return _traces(name)


def _cli(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.sandbox", *args]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=200, check=False)


def test_nodes_have_their_own_names_addresses_tmp_and_share_one_folder(slurm: Sandbox) -> None:
    script = (
        f'touch "/tmp/of $(hostname)"; cd /tmp; ls -m of*; hostname -I; touch "{slurm.shared}/from'
        ' $(hostname)"'
    )
    lines = slurm.run(["srun", "-N3", "-l", "bash", "-c", script]).stdout.splitlines()

    assert sorted(lines) == sorted(
        f"{i}: {text}" for i in range(3) for text in (f"of n{i + 1}", f"10.77.0.{i + 1} ")
    )
    assert {path.name for path in slurm.shared.glob("from *")} == {"from n1", "from n2", "from n3"}
    assert not list(Path("/tmp").glob("of n?"))
    assert (slurm.tmp("n2") / "of n2").exists()


def test_jobs_get_the_fake_gpus_they_ask_for(slurm: Sandbox) -> None:
    show = ["bash", "-c", "echo ${CUDA_VISIBLE_DEVICES-none}"]

    assert slurm.run(["srun", "-N2", "--gres=gpu:2", *show]).stdout.split() == ["0,1", "0,1"]
    assert slurm.run(["srun", "-N1", *show]).stdout.strip() == "none"


def test_two_users_share_a_node(slurm: Sandbox) -> None:
    slurm.shared.chmod(0o1777)
    mine = slurm.sbatch(["-w", "n1", "--wrap", "sleep 300"])
    theirs = slurm.sbatch(["-w", "n1", "--wrap", "sleep 300"], user=TEST_USER)

    slurm.wait(mine, 60, "RUNNING")
    slurm.wait(theirs, 60, "RUNNING")
    wait_until(lambda: len({p.user for p in slurm.processes("n1") if p.cmdline == "sleep 300"}) == 2)


def test_the_other_user_can_run_the_tests_python(slurm: Sandbox) -> None:
    done = slurm.run(
        ["srun", "-N2", sys.executable, "-c", "import os; print(os.getuid() > 0)"], user=TEST_USER, cwd="/"
    )

    assert done.stdout == "True\nTrue\n"


def test_a_command_that_hangs_is_ended_in_time_even_with_a_background_child(slurm: Sandbox) -> None:
    began = time.monotonic()

    with pytest.raises(
        SandboxError, match=r"on n1: bash -c setsid sleep 90 & sleep 90: not done after 0\.5 s"
    ):
        slurm.exec("n1", ["bash", "-c", "setsid sleep 90 & sleep 90"], timeout=0.5)

    assert time.monotonic() - began < 60


def test_exit_code_and_the_signal_before_the_end_are_slurms_own(slurm: Sandbox) -> None:
    script = (
        '#!/bin/bash\ntrap "echo got it; exit 7" USR2\nscancel --signal=USR2 --batch $SLURM_JOB_ID\nwhile :;'
        " do sleep 0.1; done\n"
    )
    job = slurm.sbatch(["--signal=B:USR2@1", "-o", "out.txt"], input=script)

    state = slurm.wait(job, 60)

    assert (state.state, state.exit_code) == ("FAILED", 7)
    assert (slurm.shared / "out.txt").read_text() == "got it\n"


def test_a_killed_node_takes_its_processes_and_requeues_its_job(slurm: Sandbox) -> None:
    job = slurm.sbatch(["-w", "n2", "-N1", "--wrap", "touch /tmp/disk; sleep 300"])
    slurm.wait(job, 60, "RUNNING")
    stays = slurm.sbatch(["-w", "n3", "--no-requeue", "--wrap", "sleep 300"])
    slurm.wait(stays, 60, "RUNNING")

    wait_until((slurm.tmp("n2") / "disk").exists)
    slurm.kill_node("n2", noticed=True)
    slurm.kill_node("n3", noticed=True)

    assert slurm.processes("n2", daemons=True) == []
    assert slurm.wait(stays, 60).state == "NODE_FAIL"
    assert slurm.wait(job, 60, "PENDING").restarts == 1
    slurm.run(["scancel", str(job)])
    slurm.start_node("n2")
    assert slurm.exec("n2", ["ls", "/tmp/disk"]).stdout == "/tmp/disk\n"


def test_the_shared_folder_fills_turns_readonly_vanishes_and_comes_back(slurm: Sandbox) -> None:
    def write(node: str) -> str:
        return slurm.exec(
            node, ["python3", "-c", "open('probe', 'wb').write(bytes(1 << 20))"], check=False
        ).stderr

    with (slurm.shared / "open").open("w"):
        slurm.fill()
        assert f"[Errno {errno.ENOSPC}]" in write("n1")
        slurm.restore()
        slurm.readonly()
        assert [f"[Errno {errno.EROFS}]" in write(node) for node in ("login", "n1", "n3")] == [True] * 3
        slurm.restore()
        slurm.vanish()
        assert slurm.exec("n1", ["ls", slurm.shared], cwd="/").stdout == ""
        slurm.restore()
        slurm.hang()
        codes = []
        for node, limit in (("n1", "1"), ("n3", "1"), ("login", "60")):
            look = ["timeout", "--signal=KILL", limit, "ls", slurm.shared]
            codes.append(slurm.exec(node, look, cwd="/", check=False).returncode)
        slurm.restore()
        assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0]  # timeout ends itself so too
    assert write("n1") == write("login") == ""


def test_two_sandboxes_do_not_meet_and_leave_nothing(slurm: Sandbox) -> None:
    links = _links()
    (slurm.shared / "private").touch()
    with Sandbox.up(nodes=1) as other:
        mine = _namespaces(other)
        assert not mine & _namespaces(slurm)
        other.exec("n1", ["bash", "-c", "setsid sleep 1000 < /dev/null > /dev/null 2>&1 &"])
        assert other.run(["srun", "-N1", "ls", slurm.shared]).stdout == ""
        assert slurm.run(["sinfo", "-h", "-o", "%D"]).stdout.strip() == "3"
        assert {other.name, slurm.name} <= set(Sandbox.names())
        before = time.clock_gettime(time.CLOCK_BOOTTIME)

    assert _gone(other.name) == []
    wait_until(lambda: not mine & _namespaces_in_use(before))
    assert _links() == links
    assert slurm.run(["srun", "-N3", "true"]).returncode == 0


@pytest.mark.parametrize("extra_conf", ["NoSuchKey=1", "SlurmctldPort=1x"])
def test_a_failed_up_shows_the_log_and_leaves_nothing(slurm: Sandbox, extra_conf: str) -> None:
    with pytest.raises(SandboxError, match=r"(?s)did not come up.*(fatal|error)"):
        Sandbox.up(nodes=1, name="t-failed", extra_conf=extra_conf, timeout_s=60)

    assert _gone("t-failed") == []


def test_an_up_that_takes_too_long_leaves_nothing() -> None:
    with pytest.raises(
        SandboxError, match=r"(?s)not all nodes idle in time; sinfo says: .*n9=unk.*slurmctld\.log"
    ):
        Sandbox.up(nodes=1, name="t-slow", timeout_s=12, extra_conf="NodeName=n9 NodeAddr=10.77.0.9")

    assert _gone("t-slow") == []


def test_a_killed_parent_takes_its_sandbox_with_it() -> None:
    code = (
        "import os, signal; from tests.sandbox import Sandbox; Sandbox.up(nodes=1, name='t-orphan');"
        " os.kill(os.getpid(), signal.SIGKILL)"
    )

    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, timeout=200, check=False)

    assert done.returncode == -signal.SIGKILL
    assert _gone("t-orphan") == []


def test_a_killed_keeper_is_cleaned_up_after() -> None:
    sandbox = Sandbox.up(nodes=1, name="t-keeper")
    keeper = next(int(line.split(":")[0]) for line in _traces("t-keeper") if "tests.sandbox.keeper" in line)
    os.kill(keeper, signal.SIGKILL)

    sandbox.down()

    assert _gone("t-keeper") == []


def test_by_hand_up_status_run_down() -> None:
    try:
        assert _cli("up", "--name", "t-hand", "--nodes", "2", "--kill-wait", "3").returncode == 0
        assert "up already" in _cli("up", "--name", "t-hand").stderr
        status = _cli("status", "--name", "t-hand").stdout
        assert "n1  10.77.0.1    idle" in status
        assert "n2  10.77.0.2    idle" in status
        assert "t-hand" in _cli("list").stdout.split()
        assert (
            "KillWait                = 3 sec"
            in _cli("run", "--name", "t-hand", "--", "scontrol", "show", "config").stdout
        )
        assert (
            _cli(
                "exec",
                "--name",
                "t-hand",
                "--node",
                "n2",
                "--user",
                TEST_USER,
                "--cwd",
                "/tmp",
                "--",
                "id",
                "-un",
            ).stdout
            == f"{TEST_USER}\n"
        )
        assert (
            _cli("exec", "--name", "t-hand", "--node", "n3", "--", "true").stderr
            == "error: no node 'n3' in sandbox 't-hand' (there are login, n1, n2)\n"
        )
    finally:
        assert _cli("down", "--name", "t-hand").returncode == 0
    assert _gone("t-hand") == []
    assert "no sandbox 't-hand' is up" in _cli("status", "--name", "t-hand").stderr
