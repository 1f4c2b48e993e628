"""`rlprof plan`, `convert` and `schema` as a person runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.request.test_rules import REQUESTS, STEPS

from rlprof_ops.cli import cli
from rlprof_ops.errors import RlprofError
from rlprof_ops.request import (
    RequestError,
    load_request,
    request_from_dict,
    request_from_json,
)
from rlprof_ops.request.yaml_file import parse_yaml
from rlprof_ops.request.yaml_schema import schema

PYTHON = Path(__file__).parents[2] / "python"
FILE = "captures:\n- workers: '*policy*'\n  steps: 3:5, 10\n"


@pytest.fixture
def request_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in [name for name in os.environ if name.startswith(("RLPROF_", "NRL_"))]:
        monkeypatch.delenv(name)
    path = tmp_path / "profile.yaml"
    path.write_text(FILE)
    return str(path)


def run(*arguments: str, code: int = 0) -> tuple[str, str]:
    """stdout and stderr of one command, which ends with `code`."""
    result = CliRunner().invoke(cli, arguments)
    if isinstance(result.exception, RlprofError):
        assert result.exception.exit_code == code, result.exception
        return "", str(result.exception)
    assert result.exit_code == code, result.output
    return result.stdout, result.stderr


def test_plan_prints_a_table(request_file: str) -> None:
    out, err = run("plan", request_file, "--world", "policy_worker=8,generation_worker=4")
    assert out.splitlines()[:2] == [
        "#  backend  worker         ranks  windows  each  reports  disk",
        "1  nsight   policy_worker  all 8  3:5 10   step  16       1.2 GiB",
    ]
    assert "reports: 16    disk: about 1.2 GiB (reports x steps in each x 50 MiB" in out
    assert "<run folder>/profiles/" in out and err == ""


def test_plan_without_a_world_is_symbolic(request_file: str) -> None:
    out, err = run("plan", request_file)
    assert "ranks x 2" in out and "reports: unknown" in out
    assert "warning: the world is unknown" in err


def test_plan_as_json(request_file: str) -> None:
    data = json.loads(run("plan", request_file, "--world", "policy_worker=2", "--json")[0])
    assert (data["reports"], data["exact"], len(data["captures"])) == (4, True, 4)
    assert data["captures"][0] == "nsight/policy_worker/rank0/step3-4"


def test_plan_takes_the_world_of_a_trainer(request_file: str, tmp_path: Path) -> None:
    config = tmp_path / "ppo.yaml"
    config.write_text("trainer: {nnodes: 2, n_gpus_per_node: 4}\n")
    out, _ = run(
        "plan",
        request_file,
        "--workers",
        "actor",
        "--each",
        "phase",
        "--framework",
        "verl",
        "--trainer-config",
        str(config),
    )
    assert "1  nsight   actor   all 8  3 4 10   phase  72" in out, "8 ranks x 3 steps x 3 phases of the actor"
    assert "needs --framework" in run("plan", request_file, "--trainer-config", str(config), code=2)[1]
    config.write_text("{}")
    assert (
        "does not tell how many ranks"
        in run("plan", request_file, "--framework", "verl", "--trainer-config", str(config), code=2)[1]
    )


def test_plan_for_the_job_before_ray_starts(request_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(run("plan", "--from-env", "--resolved")[0]) == {"captures": []}
    monkeypatch.setenv("RLPROF_REQUEST", request_file)
    text, _ = run("plan", "--from-env", "--resolved")
    assert request_from_json(text) == load_request(request_file)
    monkeypatch.setenv("RLPROF_STEPS", "0:10")
    monkeypatch.setenv("RLPROF_WORKERS", "*")
    assert run("plan", "--from-env", "--json", code=2)[1].startswith("RLPROF_STEPS: steps '0:10'")
    assert "--from-env reads variables only" in run("plan", "x.yaml", "--from-env", code=2)[1]


def test_plan_asks_the_backends(request_file: str, tmp_path: Path) -> None:
    path = tmp_path / "torch.yaml"
    path.write_text("captures:\n- {backend: torch, workers: w, steps: 3, options: {with_stak: true}}\n")
    _, err = run("plan", str(path), code=2)
    assert err.startswith(f"{path}:2:51: the torch backend has no option 'with_stak'") and "with_stack" in err
    path.write_text("captures:\n- {workers: w, steps: 3, options: {trac: cuda, capture-range: nvtx}}\n")
    _, err = run("plan", str(path))
    assert "nsys 2023.4 has no option 'trac'. Did you mean 'trace'?" in err
    assert "capture-range nvtx: a window is an NVTX range, under `nsys profile`" in err


def test_plan_prints_what_findings_open(request_file: str, tmp_path: Path) -> None:
    path = tmp_path / "when.yaml"
    path.write_text("captures:\n- {backend: torch, workers: w, when: {every: 200}}\n")
    out, _ = run("plan", str(path), "--world", "w=2")
    assert "1  torch    w       all 2  when every: 200, at_most: 5  step  up to 5 x 2  ?" in out
    assert "reports: 0, and what `when` opens" in out


@pytest.mark.parametrize("world", ["policy_worker", "policy_worker=x", "a=1,a=2", ",", "=3"])
def test_a_wrong_world_is_named(request_file: str, world: str) -> None:
    assert "--world: " in run("plan", request_file, "--world", world, code=2)[1]


def test_flags_change_the_request(request_file: str) -> None:
    out, _ = run("plan", request_file, "--steps", "7", "--ranks", "0", "--world", "policy_worker=8")
    assert "1  nsight   policy_worker  0      7        step  1" in out
    assert run("plan", request_file, "--steps", "5:5", code=2)[1].startswith("--steps: steps '5:5' is empty")


def test_convert_there_and_back(request_file: str, tmp_path: Path) -> None:
    out, err = run("convert", "--to", "nemo_rl", request_file)
    assert "export NRL_NSYS_WORKER_PATTERNS='*policy*'\n" in out
    assert err == "rlprof: lost: capture 1: steps '10'; NeMo RL takes one range, the first is written\n"
    run("convert", "--to", "nemo_rl", request_file, "--strict", code=2)
    assert (
        "configured by env" in run("convert", "--to", "nemo_rl", request_file, "--format", "yaml", code=2)[1]
    )
    script = tmp_path / "run.sh"
    script.write_text(out)
    back, _ = run("convert", "--from", "nemo_rl", str(script))
    assert back == "captures:\n- backend: nsight\n  workers: ['*policy*']\n  steps: '3:5'\n"


def test_converting_overrides_and_stdin() -> None:
    words = [
        "global_profiler.tool=nsys",
        "global_profiler.steps=[1,2]",
        "actor_rollout_ref.ref.profiler.enable=True",
    ]
    out, err = run("convert", "--from", "verl", "--format", "json", *words)
    assert json.loads(out)["captures"] == [
        {"backend": "nsight", "workers": ["ref"], "ranks": [0], "steps": "1:3"}
    ]
    assert "read as rank 0" in err
    result = CliRunner().invoke(cli, ["convert", "--from", "verl", "-"], input="\n".join(words))
    assert "workers: [ref]" in result.stdout
    assert "cannot be read" in run("convert", "--from", "verl", "nowhere.yaml", code=2)[1]


def test_the_schema_agrees_with_the_loader() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    printed = json.loads(run("schema")[0])
    assert printed == schema()
    validator = jsonschema.Draft202012Validator(printed)
    validator.check_schema(printed)
    cases = [rule.given for rule in REQUESTS]
    cases += [
        {"captures": [{"workers": "w", "steps": rule.given}]}
        for rule in STEPS
        if not isinstance(rule.given, float)
    ]
    looser = stricter = 0
    for data in cases:
        try:
            request_from_dict(data)
            accepted = True
        except RequestError:
            accepted = False
        valid = validator.is_valid(data)
        looser += valid and not accepted
        stricter += accepted and not valid and not isinstance(data["captures"][0].get("steps"), str)
    assert stricter == 0, "an editor never marks a request that works"
    assert looser <= 20


def test_the_readme_example_of_the_design_passes_the_schema() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    text = """
captures:
  - backend: nsight
    workers: ["*policy*"]
    ranks: [0, 1]
    steps: "3:5, 10"
    each: step
    options: {t: "cuda,nvtx"}
    flags: [python-backtrace]
    env: {}
  - backend: torch
    workers: ["vllm_generation_worker"]
    steps: "3:5"
enabled: true
output_dir: null
"""
    data, _, _ = parse_yaml(text, "test")
    jsonschema.validate(data, schema())
    assert len(request_from_dict(data).captures) == 2


def test_importing_the_request_is_cheap() -> None:
    """Every training process pays for it: no PyYAML, no click, no backend, nothing of other rooms."""
    code = (
        "import sys, rlprof_ops.request; print(*[m for m in sys.modules if m.split('.')[0] in ('yaml',"
        " 'click', 'rlprof_ops', 'json')])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(PYTHON)},
    )
    modules = out.stdout.split()
    assert not [m for m in modules if m.startswith(("yaml", "click", "json"))]
    small = (
        "env_names",
        "errors",
        "version",
        "words",
        "backends",
        "backends.contract",
        "backends.window_support",
    )
    assert all(
        m in ("rlprof_ops", *(f"rlprof_ops.{name}" for name in small)) or m.startswith("rlprof_ops.request")
        for m in modules
    )


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"RLPROF_STEPS": "0:10", "RLPROF_WORKERS": "*"}, "RLPROF_STEPS: steps '0:10'"),
        (
            {"NRL_NSYS_PROFILE_STEP_RANGE": "1-10", "NRL_NSYS_WORKER_PATTERNS": "*"},
            "NRL_NSYS_PROFILE_STEP_RANGE: steps '1-10'",
        ),
        ({"RLPROF_REQUEST": "/nowhere.yaml"}, "/nowhere.yaml: cannot be read"),
    ],
)
def test_a_bad_request_ends_the_demo_before_ray(env: dict[str, str], message: str, tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RLPROF_", "NRL_"))}
    done = subprocess.run(
        [sys.executable, "-m", "rlprof_ops", "demo", "--output", str(tmp_path)],
        env={**clean, **env, "PYTHONPATH": str(PYTHON)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert message in done.stdout + done.stderr
    assert not list(tmp_path.rglob("session_*"))


def test_convert_reads_a_script_a_file_with_overrides_and_fails_on_nothing(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "#!/bin/bash\n# don't stop\nSTEPS='[3,4]'; export UNUSED=1;\n"
        'python3 -m verl.trainer.main_ppo \\\n    data.train_files="$HOME/x" \\\n'
        "    global_profiler.tool=nsys global_profiler.steps=$STEPS \\\n"
        "    actor_rollout_ref.actor.profiler.enable=True"
        " actor_rollout_ref.actor.profiler.all_ranks=True $@\n"
    )
    out, _ = run("convert", "--from", "verl", "--format", "json", str(script))
    assert json.loads(out)["captures"] == [
        {"backend": "nsight", "workers": ["actor", "rollout"], "steps": "3:5"}
    ]
    out, _ = run("convert", "--from", "verl", "--format", "json", str(script), "global_profiler.steps=[7]")
    assert json.loads(out)["captures"][0]["steps"] == "7"
    nothing = tmp_path / "nothing.yaml"
    nothing.write_text("trainer: {nnodes: 2}\n")
    assert "no key of verl's profiling is in it" in run("convert", "--from", "verl", str(nothing), code=2)[1]
    assert "nothing is profiled" in run("convert", "--from", "nemo_rl", "A=1 python x.py", code=2)[1]
    inner = "NRL_NSYS_PROFILE_STEP_RANGE=3:5 NRL_NSYS_WORKER_PATTERNS=*policy* uv run x.py"
    (tmp_path / "launch.sh").write_text(f"COMMAND='{inner}' sbatch ray.sub")
    out, _ = run("convert", "--from", "nemo_rl", "--format", "json", str(tmp_path / "launch.sh"))
    assert json.loads(out)["captures"][0]["steps"] == "3:5"


def test_what_changes_a_runs_own_file_is_read_over_it(tmp_path: Path) -> None:
    """RLinf's document: `enabled`, `steps` and a rocprof block beside the run's own YAML."""
    main, block, script = tmp_path / "main.yaml", tmp_path / "rocm.yaml", tmp_path / "launch.sh"
    main.write_text("defaults:\n  - profile/default@cluster.profiling\n")
    read = ("convert", "--from", "rlinf", "--format", "json")
    alone = run(*read, "cluster.profiling.enabled=false", code=2)[1]
    assert "--base" in alone, "what to do where the backend stands in a file"
    base = (*read, "--base", str(main))
    off = json.loads(run(*base, "cluster.profiling.enabled=false")[0])
    assert off["enabled"] is False and off["captures"][0]["workers"][0] == "ActorGroup"
    steps = json.loads(run(*base, "+cluster.profiling.steps=[3]")[0])
    assert steps["captures"][0]["steps"] == "4", "RLinf counts from 0"
    script.write_text("#!/bin/bash\npython train.py '+cluster.profiling.steps=[3]'\n")
    assert json.loads(run(*base, str(script))[0]) == steps
    main.write_text("cluster:\n  num_nodes: 1\n")
    block.write_text("backend: rocprof_sys\nworker_groups: [ActorGroup]\nargs: {T: hip}\n")
    [capture] = json.loads(run(*base, str(block))[0])["captures"]
    assert capture["backend"] == "rocprof_sys" and capture["options"] == {"T": "hip"}
    first = tmp_path / "first.sh"
    first.write_text("export NRL_NSYS_PROFILE_STEP_RANGE=3:5\n")
    words = ("--base", str(first), "NRL_NSYS_WORKER_PATTERNS=*policy*")
    assert '"*policy*"' in run("convert", "--from", "nemo_rl", "--format", "json", *words)[0]
