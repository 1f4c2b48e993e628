"""Real Ray and real nsys: every way to start a worker, all at once, with two sets of options, on read-only
site-packages.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from tests.needs import lacking
from tests.real_nsys import nvtx_ranges

pytest.importorskip("ray")

from rlprof_ops import rayenv
from rlprof_ops.request import request_from_dict

pytestmark = [pytest.mark.whole, pytest.mark.ray, pytest.mark.nsys, pytest.mark.timeout(700)]

# All that a shell means something by, in one value of an option. Of a backslash nsys itself wants two.
HOSTILE = "a b|c; $(touch pwned) $HOME `id` 'd' \"e\" \\\\ {f,g} * é"

POLICY, GENERATION = "policy_worker", "generation_worker"
UMASK = 0o037  # nobody's default

DRIVER = r"""
import json, os, sys, time
import ray
from rlprof_ops.runtime import profiler

ray_dir, ways = sys.argv[1], json.loads(sys.argv[2])
ray.init(num_cpus=2, include_dashboard=False, _temp_dir=ray_dir, logging_level="error", log_to_driver=False)

def command_line():
    pid = os.getpid()
    while pid > 1:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().decode().split("\0")
        if words[1:2] in (["launch"], ["profile"]):
            return words
        with open(f"/proc/{pid}/stat") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
    return []

def work(name, rank):
    prof = profiler.from_env(worker=name, rank=rank)
    with prof.step(1), prof.range("train"):
        time.sleep(0.01)
    prof.close()
    import importlib.util
    os.umask(mask := os.umask(0))
    return {"umask": oct(mask), "nsys": command_line(), "python": sys.executable, "prefix": sys.prefix,
            "utf8": sys.flags.utf8_mode, "cwd": os.getcwd(), "uv": "UV_RUN_RECURSION_DEPTH" in os.environ,
            "probe": bool(importlib.util.find_spec("rlprof_probe"))}

@ray.remote(num_cpus=0)
class Actor:
    def work(self, name, rank):
        return work(name, rank)

begun = time.monotonic()
refs = {}
actors = []
for key, (worker, rank, rest) in ways.items():
    runtime_env = {**rest, **(profiler.runtime_env(worker, rank) if worker else {})}
    if key.startswith("task"):
        refs[key] = ray.remote(num_cpus=0)(work).options(runtime_env=runtime_env).remote(worker, rank)
    else:
        actors.append(Actor.options(runtime_env=runtime_env).remote())
        refs[key] = actors[-1].work.remote(worker, rank)
for key, ref in refs.items():
    try:
        result = ray.get(ref, timeout=300)
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"[:2000]}
    print(json.dumps([key, round(time.monotonic() - begun, 1), result]), flush=True)
"""


def a_wheel(folder: Path) -> Path:
    """The smallest package that pip installs without an index."""
    path = folder / "rlprof_probe-1.0-py3-none-any.whl"
    info = "rlprof_probe-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("rlprof_probe.py", "")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: rlprof_probe\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    """Start them all in one cluster; returns (what each said, the node folder)."""
    tmp = tmp_path_factory.mktemp("workers")
    project = tmp / "project.zip"
    with zipfile.ZipFile(project, "w") as archive:
        archive.writestr("project/rlprof_probe.py", "")
    ways = {
        "plain": (POLICY, 0, {}),
        "options": (GENERATION, 0, {}),
        "py_executable": (
            POLICY,
            1,
            {"py_executable": f"env -u NOTHING {shlex.quote(sys.executable)} -X utf8"},
        ),
        "working_dir": (POLICY, 2, {"working_dir": f"file://{project}"}),
        "task": (GENERATION, 1, {}),
        "unselected": ("reward", 0, {}),
        "range": ("range_worker", 0, {}),
        "ray's own key": (None, 0, {"nsight": {"t": "nvtx", "o": "trainer_worker_3:5_%p"}}),
    }
    if shutil.which("virtualenv") or _has("virtualenv"):
        ways["pip"] = (POLICY, 3, {"pip": {"packages": [str(a_wheel(tmp))], "pip_check": False}})
    uv = shutil.which("uv", path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]))
    if uv:
        ways["uv run"] = (
            POLICY,
            4,
            {
                "py_executable": (
                    f"{shlex.quote(uv)} run --no-project --offline --python {shlex.quote(sys.executable)}"
                    " python"
                )
            },
        )
    request = request_from_dict(
        {
            "captures": [
                {"workers": [POLICY], "steps": "1:2", "options": {"t": "nvtx"}},
                {
                    "workers": ["range_worker", "trainer_worker"],
                    "steps": "1:2",
                    "options": {"t": "nvtx", "c": "nvtx"},
                },
                {
                    "workers": [GENERATION],
                    "steps": "1:2",
                    "options": {"t": "nvtx,osrt", "osrt-threshold": "5000", "nvtx-capture": HOSTILE},
                },
            ]
        }
    )
    node_dir = tmp / "node"
    ray_dir = f"/tmp/rlprof-w{os.getpid()}"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RLPROF_", "RAY_", "NRL_"))}
    env |= rayenv.environment() | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "RLPROF_JOB": "77",
        "RLPROF_NODE": "n1",
        "RLPROF_NODE_DIR": str(node_dir),
        "RLPROF_REQUEST_JSON": request.to_json(),
        "RAY_AUTH_MODE": "disabled",
    }
    command = [sys.executable, "-c", DRIVER, ray_dir, json.dumps(ways)]
    if not lacking("mount"):  # as in a container image: Ray's own files cannot be patched
        import ray

        site = Path(ray.__file__).parents[1]
        text = (
            'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && ! touch "$0/rlprof-probe"'
            f" 2>/dev/null && exec {shlex.join(command)}"
        )
        command = ["unshare", "-m", "bash", "-c", text, str(site)]
    try:
        command = ["bash", "-c", f'umask {UMASK:04o}; exec "$@"', "bash", *command]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    finally:
        shutil.rmtree(ray_dir, ignore_errors=True)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [
        line for line in done.stdout.splitlines() if line.startswith("[")
    ]  # Ray warns of many workers there
    said = {key: result for key, _, result in map(json.loads, lines)}
    assert set(said) == set(ways), done.stdout
    return said, node_dir, ways


def _has(module):
    import importlib.util

    return importlib.util.find_spec(module) is not None


def test_each_worker_has_its_own_interpreter(workers):
    said, _, _ = workers

    assert not [one for one in said.values() if "error" in one], said
    own = {key: result["python"] for key, result in said.items()}
    assert {
        own[key]
        for key in (
            "plain",
            "options",
            "py_executable",
            "working_dir",
            "task",
            "unselected",
            "range",
            "ray's own key",
        )
    } == {sys.executable}
    assert said["py_executable"]["utf8"] == 1 and said["plain"]["utf8"] == 0
    assert (
        "working_dir_files" in said["working_dir"]["cwd"]
        and said["working_dir"]["probe"]
        and not said["plain"]["probe"]
    )


def test_each_worker_has_the_umask_that_ray_gave_it(workers):
    """nsys resets it to 0, which makes checkpoints anybody's to write."""
    said, _, _ = workers

    assert {key: result.get("umask") for key, result in said.items()} == dict.fromkeys(said, oct(UMASK))
    assert all(said[key]["nsys"] for key in ("plain", "range", "ray's own key"))


def test_a_pip_environment_keeps_its_interpreter(workers):
    said, _, ways = workers
    if "pip" not in ways:
        pytest.skip("virtualenv is not installed, which Ray makes pip environments with")

    assert "/runtime_resources/pip/" in said["pip"]["prefix"]
    assert said["pip"]["probe"]


def test_uv_run_starts_the_worker(workers):
    said, _, ways = workers
    if "uv run" not in ways:
        pytest.skip("uv is not installed")

    assert os.path.realpath(said["uv run"]["python"]) == os.path.realpath(sys.executable)
    assert [key for key, result in said.items() if result["uv"]] == ["uv run"]


def test_each_kind_of_worker_has_its_own_options(workers):
    said, _, _ = workers

    for key, result in said.items():
        if key in ("options", "task"):
            options = [f"--nvtx-capture={HOSTILE}", "--osrt-threshold=5000", "-t", "nvtx,osrt"]
            assert result["nsys"][3 : 3 + len(options)] == options, "the exact words that nsys got"
        elif key == "unselected":
            assert result["nsys"] == []
        else:
            assert "nvtx" in result["nsys"] and not any("osrt" in word for word in result["nsys"])


def test_each_selected_worker_left_its_report(workers, tmp_path):
    _, node_dir, ways = workers
    wanted = sorted(
        f"{worker}_rank{rank}_step1-1_n1"
        for worker, rank, _ in ways.values()
        if worker in (POLICY, GENERATION)
    )

    reports = sorted(node_dir.glob("profiles/nsight/*/*/*.nsys-rep"))

    assert [path.name.rpartition("_")[0] for path in reports] == wanted
    for report in reports:
        assert nvtx_ranges(report, tmp_path) == ["step 1", "train"]
