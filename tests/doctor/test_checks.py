"""What the doctor makes of a machine: rules in tables, and the real parts where they are here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rlprof_ops.backends.nsight import nsys_doctor
from rlprof_ops.check_result import FAIL, OK, WARN, CheckResult, output, run_all
from rlprof_ops.doctor import node_resources, profilers, remote, shared_storage, slurm_config
from rlprof_ops.doctor.node_checks import BEGUN, joined, patience_s, pieces
from rlprof_ops.doctor.table import merged, render
from rlprof_ops.job.knobs import Settings
from tests.nsys_stand_in import answering_nsys

SETTINGS = Settings.load({})
HEALTHY = {
    "SLURM_VERSION": "23.11.4",
    "KillWait": "120 sec",
    "JobContainerType": "(null)",
    "ProctrackType": "proctrack/cgroup",
    "PreemptMode": "OFF",
    "AccountingStorageType": "accounting_storage/slurmdbd",
}


def states(config: dict[str, str]) -> dict[str, str]:
    return {found.check: found.state for found in slurm_config.judge(config, SETTINGS)}


def test_a_healthy_slurm():
    assert set(states(HEALTHY).values()) == {OK}


@pytest.mark.parametrize(
    ("option", "value", "check", "state"),
    [
        ("SLURM_VERSION", "21.08.8", "slurm version", FAIL),
        ("SLURM_VERSION", "22.05.9-1", "slurm version", OK),
        ("SLURM_VERSION", "", "slurm version", WARN),
        ("KillWait", "5 sec", "KillWait", FAIL),
        ("KillWait", "30 sec", "KillWait", OK),
        ("ProctrackType", "proctrack/linuxproc", "signals", WARN),
        ("JobContainerType", "job_container/tmpfs", "private /tmp", OK),
        ("PreemptMode", "REQUEUE", "preemption", WARN),
        ("PreemptMode", "GANG,SUSPEND", "preemption", WARN),
        ("ConstrainDevices", "yes", "GPU devices", OK),
        ("AccountingStorageType", "accounting_storage/none", "accounting", OK),
    ],
)
def test_slurm_options(option, value, check, state):
    assert states({**HEALTHY, option: value})[check] == state


def test_libraries_that_an_image_lacks_for_an_import_are_named(tmp_path):
    library, importer = tmp_path / "libgone.so", tmp_path / "QdstrmImporter"
    for source, options, made in (
        ("int gone(void) { return 0; }", ("-shared", "-fPIC"), library),
        ("int gone(void); int main(void) { return gone(); }", (str(library),), importer),
    ):
        (tmp_path / "it.c").write_text(source)
        subprocess.run(["gcc", tmp_path / "it.c", *options, "-o", made], check=True, timeout=60)
    assert list(nsys_doctor.importing(importer)) == []
    library.unlink()
    [found] = nsys_doctor.importing(importer)
    assert (found.state, found.said) == (WARN, f"{importer} lacks {library}")
    assert "rlprof harvest" in found.fix
    [found] = nsys_doctor.importing(None)
    assert found.state == WARN


def test_whose_gpus_a_job_can_open_is_said():
    def said(**config: str) -> str:
        found = slurm_config.judge({**HEALTHY, **config}, SETTINGS)
        return next(each.said for each in found if each.check == "GPU devices")

    assert "its own GPUs alone" in said(ConstrainDevices="yes", GresTypes="gpu")
    assert "CUDA_VISIBLE_DEVICES" in said(ConstrainDevices="no", GresTypes="gpu,craynetwork")
    assert "all that nvidia-smi" in said(GresTypes="(null)")


def test_every_problem_has_a_fix():
    for option, value in (
        ("SLURM_VERSION", "20.02"),
        ("KillWait", "1 sec"),
        ("ProctrackType", "proctrack/pgid"),
        ("PreemptMode", "REQUEUE"),
        ("PreemptMode", "SUSPEND"),
    ):
        for found in slurm_config.judge({**HEALTHY, option: value}, SETTINGS):
            assert found.state == OK or found.fix, found


def test_a_check_that_breaks_is_a_finding():
    def broken():
        raise ValueError("strange machine")

    [found] = run_all({"thing": broken}, "n1")
    assert (found.check, found.state, found.place) == (
        "thing",
        WARN,
        "n1",
    ) and "strange machine" in found.said


def test_a_command_that_hangs_is_bounded():
    assert output(["sleep", "30"], seconds=0.2) == (127, "not done after 200 ms")


def test_dcgm_is_named(tmp_path):
    for pid, name in (("12", "nv-hostengine"), ("13", "python"), ("14", "ncu")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "comm").write_text(name + "\n")
    found = list(profilers.other_users(tmp_path))
    assert [(entry.state, entry.said.split()[0]) for entry in found] == [
        (WARN, "ncu"),
        (WARN, "nv-hostengine"),
    ]
    assert "dcgmi profile --pause" in found[1].fix


def test_a_long_node_root_is_told(tmp_path):
    deep = "/tmp/" + "x" * 40
    found = {
        entry.check: entry for entry in node_resources.room(Settings.load({"RLPROF_NODE_ROOT": deep}), None)
    }
    assert found["socket paths"].state == FAIL
    assert found["space: RLPROF_NODE_ROOT"].state == FAIL, "the folder is not there"


def test_three_tasks_on_a_shared_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "1")
    found: dict[int, list[CheckResult]] = {}
    begun: list[bool] = []

    def task(rank: int) -> None:
        found[rank] = list(shared_storage.together(tmp_path, rank, 3, 20, f"n{rank}", begun.append))

    threads = [threading.Thread(target=task, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {entry.state for entries in found.values() for entry in entries} == {OK}, found
    assert all(
        any(entry.check == "clock" and "s to n0 (within" in entry.said for entry in found[rank])
        for rank in (1, 2)
    )
    assert begun == [False] * 3


def task(folder: Path, rank: int, tasks: int, more: tuple[CheckResult, ...] = ()) -> str:
    """What the task of node n<rank> prints that waits a third of a second."""
    said: list[str] = []

    def begun(late: bool) -> None:
        start = {"node": f"n{rank}", "nodes": f"n[0-{tasks - 1}]", "late": late}
        said.append(f"{BEGUN}{rank}:{json.dumps(start)}")

    meeting = shared_storage.together(folder, rank, tasks, 0.3, f"n{rank}", begun)
    found = []
    while True:
        try:
            found.append(replace(next(meeting), place=f"n{rank}"))
        except StopIteration as end:
            return "\n".join([*said, *pieces(rank, [*found, *more], end.value)]) + "\n"


def known(output: str) -> dict[str, tuple[str, str, str]]:
    """The one finding of each node."""
    found = joined(output)
    assert len({entry.place for entry in found}) == len(found)
    return {entry.place: (entry.state, entry.said, entry.fix) for entry in found}


@pytest.fixture
def hostnames(tmp_path, monkeypatch):
    """A scontrol that knows three nodes."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/scontrol").write_text("#!/bin/sh\necho n0\necho n1\necho n2\n")
    (tmp_path / "bin/scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")


def folders(tmp_path, *names):
    made = [tmp_path / name for name in names]
    for folder in made:
        folder.mkdir(exist_ok=True)
    return made


def test_a_folder_that_is_not_shared(tmp_path):
    """Each of two nodes has its own, whichever starts first."""
    one, other = folders(tmp_path, "one", "other")
    found = known(task(one, 0, 2) + task(other, 1, 2))
    assert found.keys() == {"n0", "n1"}
    for state, said, fix in found.values():
        assert state == FAIL and said.endswith("after 300 ms the files of 1 of 1 other nodes are not seen")
        assert fix.startswith("it is not shared between the nodes: set BASE_LOG_DIR")


def test_a_node_that_starts_after_the_others_gave_up_does_not_blame_storage(tmp_path):
    (shared,) = folders(tmp_path, "shared")
    found = known(task(shared, 0, 2) + task(shared, 1, 2))
    state, said, fix = found["n0"]
    assert (state, said) == (
        WARN,
        f"{shared}: after 300 ms the files of 1 of 1 other nodes are not seen: n1 did not start in time",
    )
    assert fix.startswith("whether it is shared is not known: give them longer (--wait)")
    state, said, _ = found["n1"]
    assert state == WARN and "others' files are seen; how late changes are was not measured" in said


@pytest.mark.usefixtures("hostnames")
def test_nodes_that_never_start_are_named(tmp_path):
    (shared,) = folders(tmp_path, "shared")
    state, said, _ = known(task(shared, 0, 3))["n0"]
    assert state == WARN and said.endswith("of 2 of 2 other nodes are not seen: n1, n2 did not start in time")


def test_they_are_told_by_their_tasks_without_scontrol(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (shared,) = folders(tmp_path, "shared")
    state, said, _ = known(task(shared, 0, 2))["n0"]
    assert state == WARN and said.endswith(": the node of task 1 did not start in time")


@pytest.mark.usefixtures("hostnames")
def test_one_that_was_there_tells_that_the_folder_is_not_shared(tmp_path):
    """Though a third has not begun; and though the second was ended before it answered."""
    one, other = folders(tmp_path, "one", "other")
    begun = task(other, 1, 3).splitlines()[0]
    state, said, _ = known(task(one, 0, 3) + begun)["n0"]
    assert state == FAIL and said.endswith("the files of 2 of 2 other nodes are not seen")


def test_how_long_nodes_wait_for_each_other_follows_from_wait():
    words = remote.NodeSelection(nodes=2, seconds=600).argv(Path("/s"), True)[-1].split()
    told = {
        name: float(value)
        for name, _, value in (word.partition("=") for word in words)
        if value and name in ("--seconds", "--until")
    }
    assert told["--seconds"] == 450 and abs(time.time() + 450 - told["--until"]) < 60
    assert patience_s(450, 449) == 449, "no queue"
    assert patience_s(450, 100) == 100, "queued for 350 s"
    assert patience_s(450, -7000) == 70, "a clock that is two hours ahead"
    assert patience_s(450, 7000) == 450, "one that is behind"
    assert patience_s(45, 10) == 45, "a short --wait"


def test_a_real_task_says_that_it_has_begun(tmp_path):
    env = {**os.environ, "SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURMD_NODENAME": "n0"}
    env |= {"SLURM_STEP_NODELIST": "n[0-1]", "SLURM_JOB_NUM_NODES": "1"}
    argv = [sys.executable, "-m", "rlprof_ops.doctor.node_checks", f"--folder={tmp_path}", "--seconds=0.2"]
    done = subprocess.run(
        [*argv, "--until=0", "--quick"], env=env, capture_output=True, text=True, timeout=120
    )
    first = done.stdout.splitlines()[0]
    assert first == f'{BEGUN}0:{{"node": "n0", "nodes": "n[0-1]", "late": false}}', done.stderr
    found = [entry for entry in joined(done.stdout) if entry.check == "shared folder"]
    assert [(entry.place, entry.state) for entry in found] == [("n0", WARN)]


def test_the_table_joins_equal_nodes():
    findings = [
        CheckResult("ray", OK, "2.60", place=place) for place in ("login", "n1", "n2", "n3", "n4")
    ] + [CheckResult("nsys", FAIL, "no", "install it", "n1")]
    assert [places for _, places in merged(findings)] == [("login",), ("n1", "n2", "n3", "n4"), ("n1",)]
    text = render(findings)
    assert (
        "n1 and 3 more" in text
        and "-> install it" in text
        and text.endswith("5 ok, 0 to look at, 1 that a job would fail on")
    )


def test_srun_lines():
    plain = remote.NodeSelection(nodes=2, srun_args=("--partition=gpu",), python="/venv/bin/python").argv(
        Path("/shared/x y"), True
    )
    assert (
        plain[:1] == ["srun"]
        and "--nodes=2" in plain
        and "--partition=gpu" in plain
        and "'--folder=/shared/x y'" in plain[-1]
    )
    joined = remote.NodeSelection(job="4711").argv(Path("/s"), False)
    assert (
        "--jobid=4711" in joined
        and "--overlap" in joined
        and not any(word.startswith("--nodes") for word in joined)
    )
    boxed = remote.NodeSelection(nodes=1, container="img#x", mounts="/a:/a", node_root="/tmp").argv(
        Path("/s/canary"), False
    )
    assert "--container-image=img#x" in boxed and any(
        word.startswith("--container-mounts=/a:/a,") and "/tmp:/tmp" in word and "/s:/s" in word
        for word in boxed
    )
    assert "exec python3 -m rlprof_ops" in boxed[-1]


def test_an_image_by_apptainer_and_one_without_python(tmp_path):
    where = remote.NodeSelection(
        nodes=1, container="i.sif", apptainer=("--nv",), python="/no/python", mounts="/b:/s"
    )
    boxed = where.argv(Path("/s/canary"), True)
    start = boxed.index("apptainer")
    assert boxed[start : start + 4] == ["apptainer", "exec", "--nv", "--bind"]
    assert boxed[start + 5 : start + 8] == ["--pwd", "/", "i.sif"]
    assert "/b:/s" in boxed[start + 4].split(",") and "/s:/s" not in boxed[start + 4].split(",")
    done = subprocess.run(["bash", "-c", boxed[-1]], capture_output=True, text=True, timeout=30)
    assert done.returncode == 127
    assert "no Python: '/no/python' is not there. Name one with --python that the image has" in done.stderr


def test_answers_survive_mixed_lines():
    tasks = [[CheckResult("check", OK, "said " * 400, place=f"n{rank}")] for rank in range(3)]
    lines = [
        line
        for number in range(9)
        for rank in range(3)
        for line in pieces(rank, tasks[rank])[number : number + 1]
    ]
    assert joined("srun: noise\n" + "\n".join(lines)) == [finding for task in tasks for finding in task]
    assert max(map(len, lines)) < 1000
    assert joined("\n".join(lines[:-1])) == tasks[0] + tasks[1]


@pytest.mark.nsys
def test_a_real_second():
    *_, found = nsys_doctor.findings()
    assert found.state in (OK, WARN), found  # WARN: nsys failed the first time, as it may on a busy machine
    assert "KiB" in found.said


@pytest.mark.nsys
def test_an_nvtx_that_nsys_records_nothing_of_is_found(tmp_path, monkeypatch, need):
    """nvtx from 0.2.12 on, under nsys 2023.4.4: the report is whole and has no range in it."""
    need("index")
    path = nsys_doctor.nsys_cli.find()
    if "2023.4" not in subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout:
        pytest.skip("another nsys, which may record it")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        str(tmp_path),
        "nvtx==0.2.12",
    ]
    subprocess.run(pip, check=True, timeout=120)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    found = nsys_doctor.trial(path)

    assert found.state == FAIL and "records none of the ranges of nvtx" in found.said
    assert "nvtx>=0.2.10,<0.2.12" in found.fix


SESSIONS = "ps axww -o args | grep session-new"


def test_a_profiler_that_writes_nothing(tmp_path):
    fake = answering_nsys(tmp_path, launch="read x", sessions=SESSIONS, start="exit 0", stop="exit 0")
    found = nsys_doctor.trial(str(fake))
    assert found.state == FAIL and found.fix
    assert "a 1 s window gave no report: nsys stop ended well and wrote none" in found.said


def test_an_agent_that_outlives_its_trial_is_ended(tmp_path):
    launch = 'setsid bash -c "sleep 619; :" > /dev/null 2>&1 & echo "$!" > "$0.agent"; read x'
    fake = answering_nsys(tmp_path, launch=launch, sessions=SESSIONS, start="exit 3")
    nsys_doctor.trial(str(fake))
    agent = Path("/proc", Path(f"{fake}.agent").read_text().strip())
    assert not agent.exists() or (agent / "cmdline").read_bytes() == b"", "it runs, and is no zombie"


def test_problems_come_first_in_colour_and_alone():
    findings = [
        CheckResult("a", OK, "fine"),
        CheckResult("b", WARN, "hm", "mend b"),
        CheckResult("c", FAIL, "no", "mend c"),
    ]
    lines = render(findings, paint=lambda text, state: f"<{state}>{text}").splitlines()
    assert [line.split(">")[0] for line in lines if line.startswith("<")] == ["<fail", "<warn", "<ok"]
    alone = render(findings, problems_only=True)
    assert "fine" not in alone and alone.endswith("1 ok, 1 to look at, 1 that a job would fail on")


def test_a_site_file_that_is_missing_or_sets_nothing(tmp_path):
    (missing,) = slurm_config.site_file({"RLPROF_SITE_ENV": "/no/site.env"})
    assert (missing.state, missing.said) == (FAIL, "RLPROF_SITE_ENV=/no/site.env: no such file")
    site = tmp_path / "site.env"
    site.write_text("export FOO=secret\nBASE_LOG_DRI=/x\n# fine\n")
    found = list(slurm_config.site_file({"RLPROF_SITE_ENV": str(site)}))
    assert [finding.state for finding in found] == [WARN, WARN]
    assert "BASE_LOG_DRI is no knob" in found[0].said and "Did you mean BASE_LOG_DIR?" in found[0].said
    assert found[1].said == f"{site}:1: 'export FOO=…' is not NAME=value, so it sets nothing"


def test_a_person_sees_what_is_looked_at():
    told: list[str] = []
    run_all({"ray": list, "nsys": list}, "login", told.append)
    assert told == ["ray", "nsys"]


@pytest.mark.slurm
@pytest.mark.ray
@pytest.mark.timeout(280)
def test_on_the_sandbox(slurm):
    import sys

    from tests.whole_job.jobs import HOME

    env = {"PYTHONPATH": f"{HOME}/python"}
    argv = [
        sys.executable,
        "-m",
        "rlprof_ops",
        "doctor",
        "--nodes",
        "3",
        "--shared",
        slurm.shared,
        "--quick",
        "--json",
    ]
    done = slurm.run(argv, env=env, timeout=240, check=False)
    found = [CheckResult(**entry) for entry in json.loads(done.stdout)]
    by = {(entry.place, entry.check): entry for entry in found}
    assert {entry.place for entry in found} == {"login", *slurm.nodes}
    for node in slurm.nodes:
        assert by[node, "shared folder"].state == OK, done.stdout
        assert by[node, "ray plugin"].state == OK, done.stdout
        assert by[node, "clock"].state == OK
    assert (
        by["login", "KillWait"].state == OK and by["login", "signals"].state == WARN
    )  # the sandbox's own settings
    assert done.returncode == 0, done.stdout
    assert not list(slurm.shared.glob(".rlprof-doctor-*"))

    # The nodes' own /tmp: each has one, so the folder made on the login node is not there.
    apart = slurm.run([*argv, "--shared", "/tmp"], env=env, timeout=240, check=False)
    folders = [entry for entry in json.loads(apart.stdout) if entry["check"] == "shared folder"]
    assert [entry["state"] for entry in folders] == [FAIL] * 3, apart.stdout
    assert all("cannot be written" in entry["said"] for entry in folders)


MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:30 / /tmp rw - tmpfs tmpfs rw
31 22 8:2 / /my\\040disk rw master:1 - xfs /dev/sdb rw
32 30 8:3 / /tmp/kept rw - ext4 /dev/sdc rw
33 22 0:40 / /over rw - ext4 /dev/sdd rw
34 33 0:41 / /over rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/tmp", "tmpfs"),
        ("/tmp/kept/x", "ext4"),
        ("/tmpfiles", "ext4"),
        ("/my disk/a", "xfs"),
        ("/over/x", "tmpfs"),
    ],
)
def test_on_which_file_system_a_folder_lies(path, kind):
    assert node_resources._file_system(Path(path), MOUNTS) == kind


def test_a_node_root_in_memory_is_warned_of():
    (found,) = node_resources.node_root(Settings.load({"RLPROF_NODE_ROOT": "/dev/shm"}))
    assert (found.state, "is memory (tmpfs)" in found.said) == (WARN, True)


@pytest.mark.parametrize(
    ("resolves", "knobs", "state"),
    [
        (["10.0.0.1"], {}, OK),
        (["127.0.1.1"], {}, WARN),
        (["127.0.1.1"], {"RLPROF_INTERFACE": "ib0"}, OK),
        (["2001:db8::1"], {}, WARN),
        (["2001:db8::1", "10.0.0.1"], {}, OK),
        ([], {}, WARN),
    ],
)
def test_a_host_that_is_reached_by_no_name(monkeypatch, resolves, knobs, state):
    answer = [(0, 0, 0, "", (address, 0)) for address in resolves]
    monkeypatch.setattr(node_resources.socket, "getaddrinfo", lambda *_: answer)
    found = node_resources.network(Settings.load(knobs), {"NCCL_SOCKET_IFNAME": "ib0"})
    assert found.state == state and "NCCL_SOCKET_IFNAME=ib0" in found.said


@pytest.mark.parametrize(
    ("on", "groups", "state"),
    [
        ("1", "0::/", WARN),
        ("0", "0::/", OK),
        (None, "0::/", OK),
        ("1", "0::/slurm/job_7", OK),
        ("1", "0::/user", WARN),  # a group without the controller of CPUs
        ("1", "4:memory:/job\n3:cpu,cpuacct:/job_7\n0::/", OK),
        ("1", "4:memory:/job\n3:cpuset:/job\n1:cpu:/\n0::/", WARN),
    ],
)
def test_autogroups_that_no_cpu_cgroup_overrides_are_warned_of(tmp_path, on, groups, state):
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / str(os.getpid())).mkdir()
    (tmp_path / str(os.getpid()) / "cgroup").write_text(groups + "\n")
    if on is not None:
        (tmp_path / "sys/kernel/sched_autogroup_enabled").write_text(on + "\n")
    (tmp_path / "groups/slurm/job_7").mkdir(parents=True)
    (tmp_path / "groups/slurm/job_7/cpu.weight").write_text("100\n")
    (tmp_path / "groups/user").mkdir()
    found = node_resources.autogroups(tmp_path, tmp_path / "groups")
    assert (found.state, bool(found.fix)) == (state, state == WARN)


def test_autogroups_are_told_by_what_the_kernel_says():
    """A process in a CPU cgroup shows no difference, so that this says what holds without one."""
    knob = Path("/proc/sys/kernel/sched_autogroup_enabled")
    if not knob.exists():
        assert node_resources.autogroups().said == "this kernel has none"
        return
    on = knob.read_text().strip() == "1"
    assert (node_resources.autogroups().said == "kernel.sched_autogroup_enabled is 0") == (not on)
