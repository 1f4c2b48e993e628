"""One verdict on a request: plan, submit, preflight, render, plugin and training process agree."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rlprof_ops import backends
from rlprof_ops.backends import Where, builtin, validate, window_support
from rlprof_ops.backends.nsight.nsys_options import PHASES_NEED
from rlprof_ops.cli import cli
from rlprof_ops.errors import UsageError
from rlprof_ops.operate.capture_request import capture, parse_next
from rlprof_ops.rayenv.plugin import RlprofPlugin
from rlprof_ops.rayenv.wrap import standalone
from rlprof_ops.request import RequestError, request_from_dict
from rlprof_ops.request.check import check_request
from rlprof_ops.request.yaml_file import request_yaml
from rlprof_ops.runtime.active_profiler import choose_recorder
from rlprof_ops.submit import preflight
from rlprof_ops.submitit_job.ray_job import RayJob

REFUSED = {
    "capture-range": ("nsight", {"capture-range": "foo"}, "capture-range 'foo': allowed are cudaProfilerApi"),
    "c": ("nsight", {"c": "hotkey"}, "capture-range 'hotkey'"),
    "capture-range-end": ("nsight", {"c": "nvtx", "capture-range-end": "often"}, "capture-range-end 'often'"),
    "preset": ("nsight", {"preset": "verll"}, "unknown nsys preset 'verll'"),
    "max_mb": ("nsight", {"max_mb": "much"}, "max_mb is 'much': expected a number of MB above 0"),
    "max_mb of none": ("nsight", {"max_mb": "0.0"}, "max_mb is '0.0': expected a number of MB above 0"),
    "max_mb of a range": (
        "nsight",
        {"max_mb": "100", "capture-range": "nvtx"},
        "max_mb closes windows of our sessions, not those of capture-range nvtx; leave it out",
    ),
    "twice": ("nsight", {"t": "nvtx", "trace": "cuda"}, "'t' and 'trace' are the same one"),
    "torch": ("torch", {"with_stak": "true"}, "the torch backend has no option 'with_stak'"),
    "value": ("torch", {"schedule_active": "0"}, "torch option active is '0'"),
    "memory": ("memory", {"hots": "true"}, "the memory backend has no option 'hots'"),
}
VALUES = {window_support.MAX_MB: "100", window_support.CAPTURE_RANGE: "nvtx"}
REFUSED |= {
    f"{option} of {each.name}": (each.name, {option: value}, found.refused)
    for each in backends.every()
    for option, value in VALUES.items()
    if (found := window_support.support(each, window_support.PROCESS, option)).refused
}


def request(backend: str, options: dict[str, str], **more: Any) -> Any:
    capture = {"backend": backend, "workers": "w", "steps": "3", "options": options, **more}
    return request_from_dict({"captures": [capture]})


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in [name for name in os.environ if name.startswith(("RLPROF_", "NRL_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_is_refused_everywhere(
    case: str, clean: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    backend, options, said = REFUSED[case]
    asked = request(backend, options, on_error="fail")
    (clean / "p.yaml").write_text(request_yaml(asked))

    for command in (["plan"], ["convert", "--to", "verl"], ["submit", "--dry-run", "--request"]):
        result = CliRunner().invoke(cli, [*command, "p.yaml"])
        assert said in str(result.exception), command
        assert getattr(result.exception, "exit_code", 0) == 2, command

    monkeypatch.setenv("RLPROF_REQUEST_JSON", asked.to_json())
    assert preflight.main() == 2
    assert said in capsys.readouterr().err

    (spec,) = asked.captures
    assert choose_recorder(spec, [spec])[0] is None
    assert said in choose_recorder(spec, [spec])[1]
    if backend == "nsight":
        monkeypatch.setenv("RLPROF_NSYS", sys.executable)
        with pytest.raises(RuntimeError, match=re.escape(said)):
            asyncio.run(_created(RlprofPlugin()))
        with pytest.raises(Exception, match=re.escape(said)):
            standalone.wrapped_command("w", 0, ["python"], asked, dict(os.environ))


@pytest.mark.parametrize("backend", ["torch", "nsight"])
@pytest.mark.parametrize("knob", ["RLPROF_RECORD", "RLPROF_ON_DEMAND"])
def test_a_capture_that_waits_for_what_is_off_is_refused_wherever_a_job_starts(
    knob: str,
    backend: str,
    clean: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    capture = {"backend": backend, "workers": "w", "when": {"step_time": "> 20 s"}}
    asked = request_from_dict({"captures": [capture]})
    (clean / "p.yaml").write_text(request_yaml(asked))
    said = f"capture 1: `when` never opens a window with {knob}=0"
    RayJob("true", asked)

    with pytest.raises(RequestError, match=re.escape(said)):
        RayJob("true", asked, settings={knob: "0"})
    submit = ["submit", "--dry-run", "--request", "p.yaml"]
    monkeypatch.setenv(knob, "0")
    for command in (
        ["plan", "p.yaml"],
        [*submit, "--set", knob, "--", "true"],
        ["run", "--request", "p.yaml", "--", "true"],
        ["demo", "--request", "p.yaml"],
    ):
        result = CliRunner().invoke(cli, command)
        assert said in str(result.exception) and getattr(result.exception, "exit_code", 0) == 2, command
    assert CliRunner().invoke(cli, [*submit, "--", "true"]).exit_code == 0  # the job is not given it
    monkeypatch.setenv("RLPROF_REQUEST_JSON", asked.to_json())
    assert preflight.main() == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["run", "--request", "p.yaml", "--", "true"], ["demo", "--request", "p.yaml"]]
)
def test_a_job_of_this_machine_refuses_what_no_backend_takes_before_it_starts(
    command: list[str], clean: Path
) -> None:
    part = {"backend": "rocprof_sys", "workers": "w", "steps": "3", "at": "3s"}
    (clean / "p.yaml").write_text(request_yaml(request_from_dict({"captures": [part]})))
    result = CliRunner().invoke(cli, command)
    assert "p.yaml" in str(result.exception) and "takes no window inside a step" in str(result.exception)
    assert not list(clean.rglob("*-logs"))
    with pytest.raises(RequestError, match="takes no window inside a step"):
        RayJob("true", {"captures": [part]})


def test_a_warning_is_said_where_a_job_starts_too(
    clean: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"RLPROF_BACKEND": "nsight", "RLPROF_STEPS": "2", "RLPROF_WORKERS": "w", "RLPROF_EACH": "phase"}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    planned = CliRunner().invoke(cli, ["plan", "--from-env"])
    assert preflight.main() == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert PHASES_NEED in line and PHASES_NEED in planned.output


@pytest.mark.parametrize("backend", backends.names_allowed())
def test_how_far_on_error_and_env_reach_is_said(backend: str) -> None:
    assert not any("on_error" in said or "env" in said for said in check_request(request(backend, {})))
    said = "\n".join(check_request(request(backend, {}, on_error="fail", env={"A": "1"})))
    assert "a window that fails" in said and "training goes on" in said
    started = backends.wraps(backend)
    assert ("a worker that cannot be started under" in said) == started
    assert (f"on_error: fail has no effect: {backend} starts no worker" in said) == (not started)
    assert ("a script that is started without these" in said) == (not started)


def test_a_trainers_own_nsys_has_no_largest_size() -> None:
    asked = request("nsight", {"max_mb": "0.5"})
    assert check_request(asked) == ()
    with pytest.raises(RequestError, match="max_mb closes windows of our sessions, not those of verl"):
        check_request(asked, Where(trainer="verl"))


@pytest.mark.parametrize("several", [{"steps": "3, 5"}, {"each": "phase"}])
def test_the_whole_life_of_a_worker_is_one_window(several: dict[str, str]) -> None:
    asked = request("nsight", {"capture-range": "none"}, **several)
    with pytest.raises(RequestError, match="the whole life of a worker is one report"):
        check_request(asked)
    assert check_request(asked, Where(trainer="verl")) == ()


@pytest.mark.parametrize(
    ("name", "fix"),
    [("duration", "`for: 20s`"), ("d", "`for: 20s`"), ("delay", "`at: 60s`"), ("y", "60s")],
)
def test_times_of_nsys_are_words_of_the_request(name: str, fix: str) -> None:
    with pytest.raises(RequestError, match=f"option '{name}' is not taken: .*{fix}"):
        check_request(request("nsight", {name: "20"}))
    check_request(request("nsight", {name: "20"}), Where(trainer="verl"))


def test_what_cannot_open_by_itself_is_refused() -> None:
    asked = request("rocprof_sys", {}, when={"rank": "slow"})
    with pytest.raises(RequestError, match="rocprof_sys takes no capture on demand"):
        check_request(asked)


@pytest.mark.parametrize(
    ("backend", "options", "said"),
    [
        ("rocprof_sys", {}, window_support.AT_THE_END),
        ("nsight", {"t": "cuda"}, "option 't' counts when a process is started"),
        ("torch", {"capture-range": "nvtx"}, "only nsight takes it"),
    ],
)
def test_what_a_running_job_cannot_take_is_refused_before_it_is_asked(
    backend: str, options: dict[str, str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        capture(tmp_path, ("*",), None, backend, "next:1", None, options, 1.0, lambda *_: None)
    with pytest.raises(UsageError, match=window_support.ONE_WINDOW):
        parse_next("3:5, 10")


async def _created(plugin: RlprofPlugin) -> None:
    context = SimpleContext()
    value = {"rlprof": {"worker": "w", "rank": 0}}
    await plugin.create(None, value, context, logging.getLogger())
    plugin.modify_context([], value, context, logging.getLogger())


class SimpleContext:
    def __init__(self) -> None:
        self.py_executable, self.env_vars, self.command_prefix = sys.executable, {}, []


ACCEPTED = [
    ("nsight", {"capture-range": "nvtx"}, "capture-range nvtx: a window is an NVTX range"),
    ("nsight", {"c": "cudaProfilerApi", "capture-range-end": "repeat-shutdown:3"}, "cudaProfilerStart"),
    ("nsight", {"capture-range-end": "stop"}, "'capture-range-end' has no effect: windows are sessions"),
    ("nsight", {"o": "x"}, "option 'o' has no effect: steps and output_dir decide it"),
    ("nsight", {"trac": "cuda"}, "nsys 2023.4 has no option 'trac'. Did you mean 'trace'?"),
    ("torch", {"profile_by_stage": "true"}, "option 'profile_by_stage' has no effect: only the trainer"),
    ("rocprof_sys", {"T": "hip"}, "rocprof-sys-python has no option 'T'"),
]


@pytest.mark.parametrize(("backend", "options", "warning"), ACCEPTED)
def test_what_has_another_effect_is_said(backend: str, options: dict[str, str], warning: str) -> None:
    (said,) = check_request(request(backend, options))
    assert warning in said and said.startswith("capture 1: ")


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("rocprof_sys", {"trace-c": "true"}),
        ("nsight", {"t": "nvtx", "x": "true"}),
        ("memory", {}),
        ("torch", {}),
    ],
)
def test_nothing_is_said_of_what_is_taken_as_asked(backend: str, options: dict[str, str]) -> None:
    assert check_request(request(backend, options)) == ()


def test_a_trainer_lets_its_window_options_win() -> None:
    asked = request("nsight", {"o": "x", "c": "nvtx", "capture-range-end": "repeat", "kill": "none"})
    assert check_request(asked, Where(trainer="verl")) == ()


def test_every_backend_has_a_verdict() -> None:
    for name in builtin():
        assert validate(request(name, {}).captures[0]).errors == ()


def test_a_request_that_is_off_needs_no_gpu() -> None:
    off = request_from_dict(
        {"enabled": False, "captures": [{"backend": "memory", "workers": "w", "steps": "3"}]}
    )
    assert check_request(off, Where(gpu=False)) == ()
    with pytest.raises(RequestError, match="needs CUDA"):
        check_request(request("memory", {}), Where(gpu=False))
