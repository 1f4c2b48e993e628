"""A backend that another package brings: a wheel with an entry point, installed beside rlprof-ops."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlprof_ops.job.knobs import import_path

SOURCE = Path(__file__).parent / "third_party"
TRAINING = """
import sys, time
from rlprof_ops.runtime import profiler

def busy_work(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))

prof = profiler.from_env("policy_worker", 0)
for step in range(1, 6):
    with prof.step(step):
        busy_work(0.4)
prof.close()
print("loaded", sorted(name for name in sys.modules if name.startswith("rlprof_ops.backends.")))
"""
ASKED = {"RLPROF_WORKERS": "policy_worker", "RLPROF_STEPS": "3:5", "RLPROF_BACKEND": "pyspy"}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the wheel was installed."""
    pytest.importorskip("setuptools", minversion="70.1")  # the first that makes wheels alone
    folder = tmp_path_factory.mktemp("third party")
    shutil.copytree(SOURCE, folder / "source")
    build = f"from setuptools import build_meta as b; b.build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=folder / "source", check=True, timeout=120)
    [wheel] = folder.glob("*.whl")
    words = ["-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", str(folder / "site")]
    subprocess.run([sys.executable, *words, str(wheel)], check=True, timeout=120)
    return folder / "site"


def run(words: list[str], cwd: Path, package: Path | None, **asked: str) -> subprocess.CompletedProcess[str]:
    path = [import_path(), *([str(package)] if package else [])]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RLPROF_", "NRL_"))}
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env={**env, "PYTHONPATH": os.pathsep.join(path), **asked},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def trained(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of a real process that took a window with it."""
    if shutil.which("py-spy") is None and not Path(sys.executable).with_name("py-spy").exists():
        pytest.skip("no py-spy here: it comes with ray[default]")
    folder = tmp_path_factory.mktemp("run")
    run_dir = folder / "4711-logs"
    done = run(["-c", TRAINING], folder, package, RLPROF_RUN_DIR=str(run_dir), RLPROF_NODE="n1", **ASKED)
    assert done.returncode == 0, done.stderr
    names = json.loads(done.stdout.split("loaded ")[1].replace("'", '"'))
    ours = {name.split(".")[2] for name in names} & {"torch", "memory", "rocprof_sys", "nsight"}
    assert not ours, "a lookup by name imports that one alone"
    capture = {"backend": "pyspy", "workers": ["policy_worker"], "steps": "3:5"}
    values: dict[str, Any] = {
        "schema": 1, "job": "4711", "job_name": "grpo", "user": "me", "nodes": ["n1"], "head": "n1",
        "framework": None, "command": "python train.py", "request": {"captures": [capture]}, "world": {},
        "versions": {}, "started_ns": 1, "end": {"cause": "driver_exit", "detail": "", "phases_s": {}},
        "driver": {"started_ns": 2, "ended_ns": 3, "exit_code": 0, "signal": None},
    }  # fmt: skip
    (run_dir / "run.json").write_text(json.dumps(values))
    node: dict[str, Any] = {"schema": 1, "node": "n1", "plugin_loaded": True, "clean": True}
    (run_dir / "nodes" / "n1.json").write_text(
        json.dumps({**node, "files": [], "recovered": [], "failed": []})
    )
    return run_dir


def captures(run_dir: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((run_dir / "manifest.json").read_text())["captures"]
    return found


def test_it_takes_a_window_of_a_real_process_and_harvest_names_it_ok(package: Path, trained: Path) -> None:
    done = run(["-m", "rlprof_ops", "harvest", str(trained)], trained, package)
    assert done.returncode == 0, done.stdout + done.stderr
    [capture] = captures(trained)
    assert (capture["backend"], capture["worker"], capture["state"]) == ("pyspy", "policy_worker", "ok")
    [report] = (trained / "profiles" / "pyspy" / "policy_worker" / "rank0").iterdir()
    assert report.name.startswith("policy_worker_rank0_step3-4_n1_") and report.name.endswith(".stacks.txt")
    assert "busy_work" in report.read_text()
    import jsonschema  # collected with Pythons that have pytest alone

    schema = run(["-m", "rlprof_ops", "schema", "manifest"], trained, package)
    jsonschema.validate(json.loads((trained / "manifest.json").read_text()), json.loads(schema.stdout))


def test_a_node_without_the_package_says_so_of_the_report_and_reads_the_request(trained: Path) -> None:
    (trained / ".harvest" / "checks.jsonl").unlink(missing_ok=True)
    run(["-m", "rlprof_ops", "harvest", str(trained)], trained, None)
    [capture] = captures(trained)
    assert capture["backend"] == "pyspy" and "unknown backend 'pyspy'" in json.dumps(capture)


def test_it_is_a_backend_as_ours_are(package: Path, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text(
        "captures:\n  - {backend: pyspy, workers: w, steps: 3, options: {rat: 9}}\n"
    )
    plan = run(["-m", "rlprof_ops", "plan", "p.yaml"], tmp_path, package)
    assert plan.returncode == 2 and "the pyspy backend has no option 'rat': it has rate" in plan.stderr
    unknown = run(["-m", "rlprof_ops", "plan", "p.yaml"], tmp_path, None)
    assert unknown.returncode == 2
    assert "backend 'pyspy' is unknown; allowed are memory, nsight, rocprof_sys or torch" in unknown.stderr
    schema = run(["-m", "rlprof_ops", "schema", "request"], tmp_path, package)
    assert '"pyspy"' in schema.stdout


def test_a_package_that_does_not_load_is_named(package: Path, tmp_path: Path) -> None:
    broken = tmp_path / "site"
    shutil.copytree(package, broken)
    (broken / "rlprof_pyspy" / "__init__.py").write_text("import nowhere_to_be_found\n")
    (tmp_path / "p.yaml").write_text("captures:\n  - {backend: pyspy, workers: w, steps: 3}\n")
    done = run(["-m", "rlprof_ops", "plan", "p.yaml"], tmp_path, broken)
    assert done.returncode == 2
    assert "the backend 'pyspy' (rlprof_pyspy:BACKEND) cannot be loaded: No module named" in done.stderr
