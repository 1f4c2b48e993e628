"""What a RayJob's supervisor finds in its environment: real tasks and a real scripts/node.sh, whose Python
writes down what it was given.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from pathlib import Path

import pytest

from rlprof_ops import RayJob, RunSummary
from rlprof_ops.errors import UsageError
from rlprof_ops.job.knobs import OF_BATCH_SCRIPT, Settings, home, read_env_file
from rlprof_ops.request import ProfileRequest, load_request, request_from_dict
from rlprof_ops.submitit_job import rendezvous
from rlprof_ops.supervisor import job_end
from rlprof_ops.supervisor.node import ray_process
from tests.scripts.test_srun_line import IP_ADDR

ASKED = request_from_dict({"captures": [{"workers": ["w"], "steps": "3"}]})
SITE = """\
NCCL_IB_HCA=mlx5
HTTPS_PROXY=http://proxy:3128
RLPROF_TRAINER=nemo_rl_megatron
RLPROF_CONTAINER_RUNTIME=pyxis
RLPROF_STEPS=3
PORT=7000
RLPROF_READY_SECONDS=5
RLPROF_HARVEST_JOB=1
"""


def program(file: Path, text: str) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


class Task:
    """A task of a Slurm job of submitit's, or of none, as a call of RayJob on this machine."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._set, self._remove = folder, monkeypatch.setenv, monkeypatch.delenv
        for name in [name for name in os.environ if name.startswith(("SLURM", "SUBMITIT", "RLPROF_"))]:
            self._remove(name)
        record = json.dumps({"request": ASKED.to_dict(), "end": {"cause": "driver_exit"}})
        self.python = program(
            folder / "python",
            f"env -0 > '{folder}/given'\necho \"$@\" > '{folder}/words'\n"
            f"cat <<'EOF' > \"$RLPROF_RUN_DIR/run.json\"\n{record}\nEOF",
        )
        (folder / "site.env").write_text(SITE)
        self._set("RLPROF_SITE_ENV", str(folder / "site.env"))

    def in_slurm(self, shown: str = "") -> None:
        """As the only task of job 7; `shown` is what `scontrol show` prints."""
        program(self._folder / "bin" / "scontrol", f"cat <<'EOF'\n{shown}\nEOF")
        self._set("PATH", f"{self._folder / 'bin'}:{os.environ['PATH']}")
        seat = {"JOB_ID": "7", "NTASKS": "1", "JOB_NUM_NODES": "1", "NODEID": "0", "JOB_NODELIST": "n1"}
        for name, value in seat.items():
            self._set(f"SLURM_{name}", value)
        self._set("SLURMD_NODENAME", "n1")
        self._set("SUBMITIT_EXECUTOR", "slurm")

    def call(self, request: ProfileRequest | None = None, **settings: str) -> RunSummary:
        settings = {"RLPROF_PYTHON": str(self.python), **settings}
        return RayJob("true", request, settings=settings, log_dir=self._folder)()

    def given(self, request: ProfileRequest | None = None, **settings: str) -> dict[str, str]:
        """The same of a new call."""
        self.call(request, **settings)
        return self.variables()

    def variables(self) -> dict[str, str]:
        """The environment of the supervisor."""
        assert (self._folder / "words").read_text() == "-m rlprof_ops.supervisor\n"
        pairs = (line.partition("=") for line in (self._folder / "given").read_text().split("\0"))
        return {name: value for name, _, value in pairs}


@pytest.fixture
def task(tmp_path, monkeypatch):
    return Task(tmp_path, monkeypatch)


def test_what_site_and_trainer_say_reaches_it(task, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("NCCL_IB_HCA", "mine")
    trainer = read_env_file(home() / "env" / "trainer_nemo_rl_megatron.env")
    given = task.given(PORT="7001")

    assert (given["NCCL_IB_HCA"], given["HTTPS_PROXY"], given["PORT"]) == (
        "mine",
        "http://proxy:3128",
        "7001",
    )
    assert given["RLPROF_READY_SECONDS"] == "5"
    told = {name: value for name, value in trainer.items() if name.startswith(("RAY_", "OMP_"))}
    assert len(told) > 10 and told.items() <= given.items()
    paths = trainer[f"RLPROF_LD_LIBRARY_PATH_{platform.machine().replace('arm64', 'aarch64').upper()}"]
    assert given["LD_LIBRARY_PATH"].startswith(paths), "by node.sh"


def test_the_trainer_may_be_a_setting_and_what_is_asked_is_its_own(task, monkeypatch):
    monkeypatch.setenv("RLPROF_STEPS", "9")
    monkeypatch.setenv("RLPROF_READY_SECONDS", "9")
    given = task.given(RLPROF_TRAINER="verl")

    assert "RAY_gcs_server_request_timeout_seconds" not in given
    assert (given["RLPROF_STEPS"], given["RLPROF_READY_SECONDS"]) == ("", "5")
    assert given["RLPROF_CONTAINER_RUNTIME"] == "none", "srun leads into no container here"


def test_a_site_says_where_reports_go_that_no_request_sends_elsewhere(task, tmp_path, monkeypatch):
    monkeypatch.setenv("RLPROF_OUTPUT_DIR", "/the/shells")
    with (tmp_path / "site.env").open("a") as site:
        site.write("RLPROF_OUTPUT_DIR=/lustre/reports\n")
    sent = request_from_dict({**ASKED.to_dict(), "output_dir": "/mine"})

    def folder(request: ProfileRequest) -> object:
        given = task.given(request)
        return load_request(None, given).output_dir

    assert folder(ASKED) == "/lustre/reports"
    assert folder(sent) == "/mine"


def test_outside_slurm_its_head_harvests_whatever_the_knobs_say(task):
    assert task.given()["RLPROF_HARVEST_JOB"] == "0"
    assert task.given(RLPROF_HARVEST_JOB="1")["RLPROF_HARVEST_JOB"] == "0"


def test_who_harvests_is_decided_once_by_the_sites_file_too(task, tmp_path):
    """The head, which is told, and who submits the other job are never both or neither."""
    task.in_slurm()
    program(tmp_path / "bin" / "sbatch", f"echo \"$@\" > '{tmp_path}/sbatch'; echo 4712")
    summary = task.call(RLPROF_HARVEST_JOB="0")
    assert task.variables()["RLPROF_HARVEST_JOB"] == "0" and summary.harvest_job == ""
    shutil.rmtree(tmp_path / "7-logs")
    summary = task.call()
    assert task.variables()["RLPROF_HARVEST_JOB"] == "1" and summary.harvest_job == "4712"
    assert (tmp_path / "sbatch").read_text().endswith(f"/scripts/harvest.sh {tmp_path}/7-logs\n")
    assert summary.exit_code == 0 and not summary.ok, "what was asked is not harvested yet"


@pytest.mark.parametrize(("shown", "gpus"), [("   Gres=gpu:8", 0), ("   Gres=(null)", 8)])
def test_gpus_that_slurm_counts_are_somebody_elses_where_the_job_asked_for_none(
    task, tmp_path, monkeypatch, shown, gpus
):
    """On each node; the first task asks Slurm."""
    monkeypatch.setattr(ray_process, "visible_gpus", lambda: 8)
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    task.in_slurm(shown)
    given = task.given(RLPROF_HARVEST_JOB="0")
    assert ray_process.gpu_count(Settings.load(given), given) == gpus
    told = json.loads((tmp_path / "7-logs/.secrets/rendezvous.json").read_text())
    assert told["slurm_counts_gpus"] is (gpus == 0), "what the other tasks are told"


def test_the_drain_ends_within_what_slurm_leaves(task, tmp_path):
    """After scancel it kills what is left KillWait seconds later, whatever RLPROF_DRAIN_SECONDS says."""
    task.in_slurm("KillWait                = 30 sec")
    given = task.given(RLPROF_HARVEST_JOB="0", RLPROF_DRAIN_SECONDS="120")
    assert job_end.cancelled_seconds(Settings.load(given), given) < 30
    told = json.loads((tmp_path / "7-logs/.secrets/rendezvous.json").read_text())
    assert told["kill_wait"] == "30", "what the other tasks are told"


def test_outside_slurm_nobody_asks_it(task, tmp_path, monkeypatch):
    program(tmp_path / "bin" / "scontrol", f"touch '{tmp_path}/asked'")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert task.given()["RLPROF_SLURM_COUNTS_GPUS"] == "0" and not (tmp_path / "asked").exists()


def test_a_site_that_cannot_be_read_is_told_before_submitting(monkeypatch):
    monkeypatch.setenv("RLPROF_SITE_ENV", "/none/site.env")
    with pytest.raises(UsageError, match=r"^RLPROF_SITE_ENV=/none/site.env: cannot be read\.$"):
        RayJob("true")


@pytest.mark.parametrize("name", OF_BATCH_SCRIPT)
def test_what_only_the_batch_script_can_keep_is_refused(name):
    with pytest.raises(UsageError) as told:
        RayJob("true", settings={name: "1"})
    assert str(told.value) == (
        f"settings['{name}']: ray.sub alone keeps it: here submitit makes the srun line. Give srun's own"
        " options to the executor (slurm_srun_args=['--container-image=…']), or submit ray.sub."
    )


def test_none_is_what_it_has(task):
    assert task.given(RLPROF_CONTAINER_RUNTIME="none")["RLPROF_CONTAINER_RUNTIME"] == "none"


def test_the_head_is_on_the_interface_that_is_named(task, tmp_path):
    """Real addresses: a node has `lo`. Outside Slurm there are no other nodes, and a site's network is not
    looked for.
    """
    assert task.given(RLPROF_INTERFACE="nosuch0")["RLPROF_HEAD_IP"] == "127.0.0.1"
    task.in_slurm("   NodeAddr=10.9.9.9")
    assert task.given(RLPROF_INTERFACE="127.0.0.0/8")["RLPROF_HEAD_IP"] == "127.0.0.1"


def test_the_other_tasks_learn_that_nothing_is_on_it(task, tmp_path):
    task.in_slurm()
    words = r"RLPROF_INTERFACE=nosuch0: node n1 has no IPv4 address there\. It has: .*lo=127\.0\.0\.1/8"
    with pytest.raises(UsageError, match=words):
        task.call(RLPROF_INTERFACE="nosuch0")
    assert "RLPROF_INTERFACE=nosuch0" in (tmp_path / "7-logs/.secrets/rendezvous.json").read_text()


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("ib0", "10.1.130.7"),
        ("10.1.0.0/16", "10.1.130.7"),
        ("192.168.3.0/24", "192.168.3.7"),
        ("0.0.0.0/0", "127.0.0.1"),
        ("ib1", None),
        ("10.2.0.0/16", None),
        ("10.1.130.7", None),
        ("10.1.0.0/255.255.0.0", None),
    ],
)
def test_an_interface_means_what_it_means_to_ray_sub(tmp_path, monkeypatch, wanted, expected):
    """tests/scripts/test_srun_line.py has the same of slurm::address."""
    program(tmp_path / "ip", f"cat <<'EOF'\n{IP_ADDR}EOF")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    env = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1", "RLPROF_INTERFACE": wanted}
    if expected is not None:
        assert rendezvous.own_address(env) == expected
        return
    with pytest.raises(UsageError) as told:
        rendezvous.own_address(env)
    known = "lo=127.0.0.1/8 eno1=192.168.3.7/24 ib0=10.1.130.7/16"
    said = f"RLPROF_INTERFACE={wanted}: node n1 has no IPv4 address there. It has: {known}."
    assert str(told.value) == said
