"""Every command of every page, typed as it stands: beside a Slurm that answers for the jobs of the examples,
and its sbatch lines before a real Slurm. The tutorial's session is run whole in
tests/operate/test_real_jobs.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("msgspec")

from tests.analyze.fake_run import make_run
from tests.analyze.shared import kernel, real, write_trace
from tests.docs.typed import DOCUMENTS, HOME, Document, lines
from tests.needs import need
from tests.operate.conftest import RunFolder
from tests.operate.fake_slurm import FakeSlurm
from tests.recorder.recorded import write_summary
from tests.recorder.simulated import healthy
from tests.sandbox import Sandbox

pytestmark = pytest.mark.whole

# Their commands run in tests of their own: the tutorial's session, and tests/adapters/test_add_a_trainer.py.
ELSEWHERE = ("tutorial.md", "add_a_trainer.md")
PAGES = [page for page in DOCUMENTS if page.name not in ELSEWHERE and lines(page.text)]
# What cannot run here: the beginning of a line -> why, and where it does run.
NOT_HERE = {
    r"make demo": "sets up a checkout; continuous integration runs it in a fresh clone",
    r"make test": "is all tests",
    r"RLPROF_TESTS(_REQUIRE|_JOBS)?=": "is tests",
    r"python3 -m venv": "installs: the tutorial's session does, and tests/packaging",
    r"/shared/me/venv/bin/pip": "the same; the environment is not there",
    r"venv/bin/": "an environment that is not there: tests/packaging",
    r"git pull": "needs the repository's home",
    r"ssh ": "needs a second machine; tests/analyze/page/test_server.py is the server that it leads to",
    r"scp ": "needs a second machine",
    r"rlprof report --serve": "serves until Ctrl-C: tests/analyze/page/test_server.py",
    r"rlprof demo": "starts Ray for a minute: tests/demo",
    r"rlprof run": "starts Ray for a minute: tests/demo/test_run_command.py",
    r".*python -m rlprof_ops\.demo(?!.*sbatch)": "starts Ray for a minute: tests/demo",
    r"python -m tests\.sandbox": "needs root: tests/sandbox",
    r"rlprof doctor --nodes 2 --container": "needs pyxis and an image",
    r"rlprof doctor": "takes nsys and, with --nodes, Slurm: tests/doctor, and the tutorial's session",
    r"(RLPROF_\w+=\S+ )*torchrun": "needs eight GPUs: tests/rayenv/wrap starts ranks in this way",
    r"rlprof (capture|stacks) ": "needs the supervisor of a running job: tests/operate/test_capture.py",
    r"rlprof top ": "needs the recorder of a running job: tests/recorder/test_live.py",
    r"rlprof export \S+ --openmetrics-port": "answers while its job runs: tests/operate/test_export.py",
    r"rlprof patch-ray --python /opt/venv": "needs that environment: tests/rayenv/builtin",
    r"RLPROF_PATCH_RAY=1": "changes the Ray of this environment: tests/supervisor/test_patch_ray.py",
    r"(rlprof patch-ray|scripts/patch_ray)": "changes the Ray of this environment: tests/rayenv/builtin",
}
# Exit codes other than 0 that a line may end with here, as the page of commands has them.
CODES = {f"rlprof {name}": (3,) for name in ("harvest", "stop", "status", "submit", "retry", "hang 4711")}
RUNNING = re.compile(
    r"rlprof (attach|dashboard|stop)|.*scripts/attach\.sh|scancel|rlprof (doctor --job|hang .* --dump)"
)
SRUN = """#!/bin/sh
# the step's program on this machine where one is named without options; else a step that ended well
case "$1" in -*) exit 0 ;; *) exec "$@" ;; esac
"""


@dataclass
class Desk:
    """A login node with the folders that the pages speak of, a fake Slurm and the real rlprof on PATH."""

    root: Path
    slurm: FakeSlurm
    env: dict[str, str]

    @property
    def work(self) -> Path:
        return self.root / "work"

    def job(self, running: bool) -> None:
        """Makes 4711 a job that runs, or one that has ended."""
        folder = RunFolder.__new__(RunFolder)
        folder.path = self.work / "4711-logs"
        folder.record(**({} if running else {"cause": "driver_exit", "exit_code": 0}))
        where = {"Comment": f"rlprof:{folder.path}", "WorkDir": str(self.work)}
        self.slurm.show("4711", "RUNNING" if running else "COMPLETED", **where)
        self.slurm.after_scancel("4711", "CANCELLED", **where)

    def type(self, line: str) -> subprocess.CompletedProcess[str]:
        """One line in bash; what it exports and where it goes stay for the next."""
        session = self.root / "session"
        for folder in ("/shared/", "/var/lib/"):
            line = line.replace(folder, f"{self.root}{folder}")
        script = (
            f"[ ! -e {session} ] || . {session}\n{line}\ncode=$?\n"
            f"{{ export -p; printf 'cd %q\\n' \"$PWD\"; }} > {session}\nexit $code\n"
        )
        return subprocess.run(
            ["bash", "-c", script], cwd=self.work, env=self.env, capture_output=True, text=True,
            stdin=subprocess.DEVNULL, timeout=120, check=False,
        )  # fmt: skip


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    slurm = FakeSlurm.make(tmp_path / "slurm")
    (slurm.folder / "bin" / "srun").write_text(SRUN)
    (slurm.folder / "bin" / "srun").chmod(0o755)
    work, shared = tmp_path / "work", tmp_path / "shared"
    for name in ("4711-logs", "4712-logs", "logs/4711-logs", "logs/4802-logs"):
        job = name.rpartition("/")[2].removesuffix("-logs")
        run = RunFolder(work / name)
        make_run(run.path, ranks=2, steps=(3, 4, 5, 6), seed=int(job))
        run.record(job, cause="driver_exit", exit_code=0)
        run.manifest(("policy_worker", 0, 3, 7, "missing" if name == "4711-logs" else "ok"), job=job)
        write_summary(run.path, job, healthy(1, 5, ranks=2))
        (run.path / "logs" / "driver.log").write_text("step 1\n")
        (run.path / "logs" / "n2.log").write_text("node n2 is up\n")
        (run.path / "logs" / "n1").mkdir()
        (run.path / "logs" / "n1" / "ray_start.log").write_text("the dashboard at \n 127.0.0.1:8265\n")
        (run.path / ".secrets" / "attach.env").write_text("RLPROF_JOB=4711\n")
        (run.path / ".secrets").chmod(0o700)
    shared.mkdir()
    (tmp_path / "var" / "lib" / "node_exporter").mkdir(parents=True)
    (shared / "rlprof-ops").symlink_to(HOME)
    (shared / "venv").symlink_to(sys.prefix)
    (shared / "rlprof").mkdir()
    (shared / "rlprof" / "east.env").write_text("SBATCH_PARTITION=east\n")
    for name in ("ray.sub", "scripts", "env"):
        (work / name).symlink_to(HOME / name)
    (work / "profile.yaml").write_text('captures: [{workers: "*", ranks: [0], steps: "3:5"}]\n')
    (work / "run_my_training.sh").write_text(
        "python3 -m verl.trainer.main_ppo global_profiler.tool=nsys 'global_profiler.steps=[1,2]' \\\n"
        '    actor_rollout_ref.actor.profiler.enable=True trainer.total_training_steps=8 "$@"\n'
    )
    (work / "ppo_trainer.yaml").write_text(
        "trainer: {nnodes: 1, n_gpus_per_node: 8, total_training_steps: 10}\n"
        "global_profiler: {tool: nsys, steps: [1, 2]}\n"
        "actor_rollout_ref: {actor: {profiler: {enable: true}}}\n"
    )
    (work / "my_traces").mkdir()
    for name in ("trainer", "trainer_after"):
        shutil.copyfile(real("h100_2gpu_part.sqlite"), work / "my_traces" / f"{name}.sqlite")
    for name in ("before/actor", "before/rollout", "after/policy", "after/engine"):
        write_trace(work / "my_traces" / f"{name}_rank0.json", [kernel("a", 0, 9)])
    (shared / "dumps").mkdir()
    (shared / "dumps" / "nccl_trace_rank_0").write_text('{"version": "2.10", "pg_config": {}, "entries": []}')
    (work / "Qwen3-8B").mkdir()
    (work / "Qwen3-8B" / "config.json").write_text(
        '{"model_type": "qwen3", "hidden_size": 4096, "vocab_size": 151936, "num_hidden_layers": 36,'
        ' "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288}'
    )
    for name in ("train.py", "train_grpo.py"):
        (work / name).write_text("print('trained')\n")
    kept = {name: os.environ[name] for name in ("LANG", "TMPDIR", "USER") if name in os.environ}
    path = f"{slurm.folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    home = tmp_path / "home"
    (home / ".local" / "state" / "rlprof").mkdir(parents=True)
    env = {
        **kept,
        "PATH": path,
        "HOME": str(home),
        "COLUMNS": "160",
        "BROWSER": "true",
        "RLPROF_NODE_ROOT": str(tmp_path / "nodes"),  # `rlprof clean` would find what others of us run here
    }
    (tmp_path / "nodes").mkdir()
    desk = Desk(tmp_path, slurm, env)
    desk.job(running=False)
    yield desk


def reason(line: str) -> str:
    return next((why for start, why in NOT_HERE.items() if re.match(start, line)), "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path.stem)
def test_the_commands_of_a_page_run_as_they_stand(page: Document, desk: Desk) -> None:
    for line in lines(page.text):
        if reason(line):
            continue
        if "jq " in line and not shutil.which("jq"):
            line = line.partition("|")[0]
        desk.job(running=bool(RUNNING.match(line)))
        done = desk.type(line)
        said = f"{page.name}: {line}\n{done.stdout}{done.stderr}"
        allowed = next((codes for start, codes in CODES.items() if line.startswith(start)), ())
        assert done.returncode in (0, *allowed), said
        assert "Traceback" not in said, said


def test_no_reason_is_left_over() -> None:
    every = [line for page in PAGES for line in lines(page.text)]
    assert len(every) > 100
    assert [start for start in NOT_HERE if not any(re.match(start, line) for line in every)] == []


@pytest.mark.slurm
def test_slurm_takes_every_sbatch_line_of_the_pages(desk: Desk) -> None:
    """As the pages' commands gave them to sbatch, to a real one with `--test-only`."""
    need("slurm")
    for page in PAGES:
        for line in lines(page.text):
            if re.search(r"\b(sbatch|submit|retry|init)\b", line) and not reason(line):
                desk.type(line.replace(" --wait", ""))
        (desk.root / "session").unlink(missing_ok=True)
    asked = [call for call in desk.slurm.calls if call["argv"][0] == "sbatch"]
    assert len(asked) > 20
    partitions = "PartitionName=gpu Nodes=ALL\nPartitionName=east Nodes=ALL"
    with Sandbox.up(nodes=4, gpus=8, cpus=64, extra_conf=partitions, visible=(str(desk.root),)) as cluster:
        before = str(cluster.sbatch(["--hold", "--wrap=true"]))
        for call in asked:
            argv = [
                word.replace("4711", before) if "dependency" in word else word for word in call["argv"][1:]
            ]
            words = ["sbatch", "--test-only", *(word for word in argv if word != "--parsable")]
            done = cluster.run(words, cwd=call["cwd"], check=False)
            assert done.returncode == 0 and "to start at" in done.stderr, f"{words}\n{done.stderr}"
