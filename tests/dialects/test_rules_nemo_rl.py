"""NeMo RL, rule by rule: its two documents, its code's names and options, and what its unit tests check."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rlprof_ops import backends
from rlprof_ops.backends import report_names
from rlprof_ops.request import (
    RequestError,
    first_match,
    load_request,
    plan,
    request_from_dict,
    request_from_json,
)
from rlprof_ops.trainers.nemo_rl import nemo_rl_names
from rlprof_ops.trainers.nemo_rl.dialect import framework
from rlprof_ops.trainers.nemo_rl.nemo_rl_names import LD_LIBRARY_PATH
from rlprof_ops.window.gate import StepGate

DOC = "docs/nsys-profiling.md"
TORCH = "torch profiler document"
CODE = "code at 7ea279abf"


def render(**fields: Any) -> Any:
    request = {"captures": [{"workers": "*policy*", "steps": "3:5"} | fields]}
    return framework("nemo_rl").render(request_from_dict(request))


RENDERED = [
    (DOC, {}, "export NRL_NSYS_WORKER_PATTERNS='*policy*'"),
    (DOC, {"workers": ["*policy*", "*vllm*"]}, "export NRL_NSYS_WORKER_PATTERNS='*policy*,*vllm*'"),
    (
        DOC,
        {"workers": "megatron_policy_worker,vllm_generation_worker"},
        "=megatron_policy_worker,vllm_generation_worker",
    ),
    (DOC, {}, "export NRL_NSYS_PROFILE_STEP_RANGE=3:5"),
    (DOC, {"steps": [2]}, "export NRL_NSYS_PROFILE_STEP_RANGE=2:3"),
    (f"{DOC}: Slurm users set RAY_LOG_SYNC_FREQUENCY", {}, "export RAY_LOG_SYNC_FREQUENCY=30"),
    (
        f"{DOC}: Megatron needs its libraries",
        {"workers": "megatron_policy_worker"},
        f"\nexport LD_LIBRARY_PATH={LD_LIBRARY_PATH}\n",
    ),
    (f"{DOC}: Megatron behind a pattern", {}, "# only for a Megatron policy: export LD_LIBRARY_PATH="),
    (
        f"{CODE}: NRL_NSYS_EXTRA_OPTIONS is JSON",
        {"options": {"t": "cuda,nvtx,osrt"}},
        """export NRL_NSYS_EXTRA_OPTIONS='{"t": "cuda,nvtx,osrt"}'""",
    ),
    (
        f"{DOC}: vLLM with model parallelism",
        {"workers": "*vllm*"},
        "its own report is empty; the inner workers write worker_process_<PID>",
    ),
    (TORCH, {"backend": "torch"}, "export NRL_TORCH_PROFILE_WORKER_PATTERNS='*policy*'"),
    (TORCH, {"backend": "torch"}, "export NRL_TORCH_PROFILE_STEP_RANGE=3:5"),
    (
        f"{TORCH}: known issue",
        {"backend": "torch", "workers": "*vllm*"},
        "vLLM's own profiler records no CUDA events",
    ),
    (f"{CODE}: the torch profiler is on a branch", {"backend": "torch"}, "exist on NeMo RL's branch"),
    (
        "own: our neutral names",
        {"workers": "generation_worker"},
        "'generation_worker' is vllm_generation_worker, vllm_async_generation_worker",
    ),
]


@pytest.mark.parametrize(("origin", "fields", "part"), RENDERED)
def test_renders(origin: str, fields: dict[str, Any], part: str) -> None:
    rendered = render(**fields)
    assert part in rendered.text, origin
    assert rendered.losses == ()


LOST = [
    (f"{CODE} 2.5.5: no rank filter", {"ranks": [0]}, "ranks"),
    (f"{CODE} 2.5.7: one window only", {"steps": "3:5,9"}, "steps '9'"),
    (f"{CODE}: no open range", {"steps": "3:"}, "the open range '3:'"),
    ("own", {"each": "phase"}, "each: phase"),
    ("own", {"flags": ["python-backtrace"]}, "flags python-backtrace"),
    ("own", {"env": {"A": "1"}}, "env A"),
    ("own", {"on_error": "fail"}, "on_error: fail"),
    ("own", {"backend": "memory"}, "NeMo RL has no memory"),
    ("own", {"backend": "torch", "options": {"with_stack": True}}, "options with_stack"),
    ("own", {"steps": None}, "has no steps"),
    (
        f"{TORCH}: three workers",
        {"backend": "torch", "workers": "sglang_generation_worker"},
        "matches no worker of NeMo RL",
    ),
    ("own: nearest name", {"workers": "dtensor_polcy_worker"}, "Did you mean 'dtensor_policy_worker'?"),
]


@pytest.mark.parametrize(("origin", "fields", "part"), LOST)
def test_says_what_is_lost(origin: str, fields: dict[str, Any], part: str) -> None:
    rendered = render(**fields)
    assert any(part in loss for loss in rendered.losses), origin
    assert all(f"# lost: {loss}" in rendered.text for loss in rendered.losses)


READ = [
    (
        f"{DOC}: an export",
        'export NRL_NSYS_WORKER_PATTERNS="*policy*,*vllm*"\nexport NRL_NSYS_PROFILE_STEP_RANGE=3:5',
        ("nsight", "*policy* *vllm*", "3:5"),
    ),
    (
        f"{DOC}: before a command",
        (
            'NRL_NSYS_PROFILE_STEP_RANGE=2:3 NRL_NSYS_WORKER_PATTERNS="*policy*" uv run'
            " examples/run_grpo_math.py grpo.max_num_steps=5"
        ),
        ("nsight", "*policy*", "2"),
    ),
    (
        f"{DOC}: exact names",
        (
            "NRL_NSYS_PROFILE_STEP_RANGE=3:10"
            ' NRL_NSYS_WORKER_PATTERNS="dtensor_policy_worker,vllm_generation_worker" uv run x'
        ),
        ("nsight", "dtensor_policy_worker vllm_generation_worker", "3:10"),
    ),
    (
        f"{DOC}: Megatron, continued lines",
        (
            'LD_LIBRARY_PATH="/a:/b" \\\nNRL_NSYS_PROFILE_STEP_RANGE=2:3'
            ' NRL_NSYS_WORKER_PATTERNS="megatron_policy_worker,vllm_generation_worker" uv run x'
        ),
        ("nsight", "megatron_policy_worker vllm_generation_worker", "2"),
    ),
    (
        TORCH,
        'export NRL_TORCH_PROFILE_STEP_RANGE=3:5\nexport NRL_TORCH_PROFILE_WORKER_PATTERNS="*vllm*"',
        ("torch", "*vllm* controller", "3:5"),
    ),
]


@pytest.mark.parametrize(("origin", "text", "expected"), READ)
def test_reads_its_documents_examples(origin: str, text: str, expected: tuple[str, str, str]) -> None:
    spec = framework("nemo_rl").import_(text, "test").request.captures[0]
    assert (spec.backend, " ".join(spec.workers), str(spec.steps)) == expected, origin


def test_the_torch_documents_own_mistake_profiles_nothing() -> None:
    """Its example exports NRL_NSYS_WORKER_PATTERNS beside NRL_TORCH_PROFILE_STEP_RANGE; ours names both
    that are missing.
    """
    with pytest.raises(RequestError) as caught:
        framework("nemo_rl").import_(
            'NRL_TORCH_PROFILE_STEP_RANGE=3:5 NRL_NSYS_WORKER_PATTERNS="*vllm*"', "test"
        )
    assert "NRL_NSYS_PROFILE_STEP_RANGE is not" in str(caught.value)
    assert "NRL_TORCH_PROFILE_WORKER_PATTERNS is not" in str(caught.value)


@pytest.mark.parametrize("patterns", ["*policy*,*vllm*", "*vllm*", "megatron_policy_worker"])
def test_the_torch_documents_patterns_select_the_controller_too(patterns: str) -> None:
    env = {"NRL_TORCH_PROFILE_STEP_RANGE": "3:5", "NRL_TORCH_PROFILE_WORKER_PATTERNS": patterns}
    request = load_request(env=env)
    for name in ("driver", "controller"):  # ours, and the document's
        assert request.for_worker(name, 0), name
    workers = {"megatron_policy_worker": 8, "vllm_generation_worker": 8}
    assert [row.ranks for row in plan(request, workers).rows if row.worker == "driver"] == [1]
    assert "controller" not in framework("nemo_rl").render(request).text


def test_the_controllers_traces_lie_at_the_top_of_the_folder() -> None:
    torch = backends.get("torch")
    assert {torch.output_folder(name, 0) for name in ("driver", "controller")} == {""}


def test_torch_folder_becomes_the_output_dir() -> None:
    env = {
        "NRL_TORCH_PROFILE_STEP_RANGE": "3:5",
        "NRL_TORCH_PROFILE_WORKER_PATTERNS": "*",
        "NRL_TORCH_PROFILE_DIR": "./torch_profiler_trace",
    }
    assert load_request(env=env).output_dir == "./torch_profiler_trace"


def test_the_torch_folder_has_the_documents_default() -> None:
    env = {"NRL_TORCH_PROFILE_STEP_RANGE": "3:5", "NRL_TORCH_PROFILE_WORKER_PATTERNS": "*"}
    assert load_request(env=env).output_dir == "torch_profiler_trace"
    assert load_request(env=env | {"RLPROF_OUTPUT_DIR": "/mine"}).output_dir == "/mine"
    assert load_request(env={"RLPROF_STEPS": "3", "RLPROF_WORKERS": "*"}).output_dir is None


@pytest.mark.parametrize("folder", ["", "/traces"])
def test_beside_nsys_the_torch_folder_is_for_torch_alone(folder: str) -> None:
    env = {
        "NRL_TORCH_PROFILE_STEP_RANGE": "3:5",
        "NRL_TORCH_PROFILE_WORKER_PATTERNS": "*",
        "NRL_TORCH_PROFILE_DIR": folder,
        "NRL_NSYS_PROFILE_STEP_RANGE": "3:5",
        "NRL_NSYS_WORKER_PATTERNS": "*",
    }
    request = request_from_json(load_request(env=env).to_json())
    assert request.folder("torch") == (folder or "torch_profiler_trace")
    assert request.folder("nsight") is None
    placed = request.in_folder("/submitted")
    assert placed.folder("torch") == (folder or "/submitted/torch_profiler_trace")


NAMES = [
    (DOC, "dtensor_policy_worker", "*policy*", True),
    (DOC, "vllm_generation_worker", "*vllm*", True),
    (TORCH, "megatron_policy_worker", "megatron_policy_worker", True),
    (
        f"{CODE} 2.3: an exact name does not match V2",
        "dtensor_policy_worker_v2",
        "dtensor_policy_worker",
        False,
    ),
    (f"{CODE} 2.3", "megatron_quant_policy_worker", "*policy*", True),
    (f"{CODE} 2.3", "vllm_async_generation_worker", "*vllm*", True),
    (f"{CODE} 2.3", "trtllm_async_generation_worker", "*generation*", True),
    (f"{CODE} 2.3", "sglang_generation_worker", "*sglang*", True),
]


@pytest.mark.parametrize(("origin", "worker", "pattern", "matches"), NAMES)
def test_worker_names(origin: str, worker: str, pattern: str, matches: bool) -> None:
    assert worker in [known.name for known in nemo_rl_names.WORKERS], origin
    assert (first_match(worker, [pattern]) is not None) == matches


REPORTS = [
    (DOC, "dtensor_policy_worker_3:5_4711.nsys-rep", "nemo_rl", "dtensor_policy_worker"),
    (DOC, "vllm_generation_worker_3:5_4711.nsys-rep", "nemo_rl", "vllm_generation_worker"),
    (DOC, "worker_process_4711.nsys-rep", "ray", None),
    (f"{CODE} 2.3: inner vLLM workers", "vllm_tp_worker_3:5_4711.nsys-rep", "vllm", "vllm_tp_worker"),
    (TORCH, "gpu012_4711.1700000000.pt.trace.json", "torch", None),
]


@pytest.mark.parametrize(("origin", "filename", "kind", "worker"), REPORTS)
def test_report_names_are_recognised(origin: str, filename: str, kind: str, worker: str | None) -> None:
    found = report_names.parse(filename)
    assert found is not None and (found.kind, found.worker) == (kind, worker), origin


# test_nsys.py: what maybe_gpu_profile_step does for a sequence of steps; here the step gate.
GATES = [
    ("starts at start, once; stops at stop (exclusive), once", "3:7", range(1, 9), ["start 3", "stop 6"]),
    ("no second start and no print inside the range", "3:7", [3, 4, 5], ["start 3", "stop 5"]),
    ("a single step 5:6", "5:6", range(4, 8), ["start 5", "stop 5"]),
    ("before and after the range nothing", "5:6", [1, 2, 8, 9], []),
    ("the same step twice is one start", "5:7", [5, 5, 6], ["start 5", "stop 6"]),
    ("step 0 and negative steps are inert", "5:6", [-3, 0], []),
    ("step 1,000,000", "1000000:1000001", [1_000_000], ["start 1000000", "stop 1000000"]),
    ("a run that ends inside stops at its end (atexit upstream)", "5:9", [5, 6], ["start 5", "stop 6"]),
]


@pytest.mark.parametrize(("behaviour", "steps", "seen", "expected"), GATES)
def test_windows_start_and_stop_as_its_tests_say(
    behaviour: str, steps: str, seen: Any, expected: list[str]
) -> None:
    done: list[str] = []
    last = SimpleNamespace(step=0)
    windows = request_from_dict({"captures": [{"workers": "w", "steps": steps}]}).captures[0].windows()
    gate = StepGate(
        windows, lambda _: done.append(f"start {last.step}"), lambda *_: done.append(f"stop {last.step}")
    )
    for step in seen:
        last.step = step
        gate.enter(step)
        gate.leave(step)
    gate.close(partial=True)
    assert done == expected, behaviour


def test_star_policy_on_64_nodes_is_warned_about() -> None:
    """Code 2.5.5: `*policy*` on 64x8 is 512 reports upstream, without a word."""
    request = request_from_dict({"captures": [{"workers": "*policy*", "steps": "3:5"}]})
    made = plan(request, {"megatron_policy_worker": 512, "vllm_generation_worker": 64})
    assert made.reports == 512 and any("512 reports are a lot" in w for w in made.warnings)
