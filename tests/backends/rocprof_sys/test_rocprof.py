"""Workers under rocprof-sys: a stand-in for its front end, Ray's real plugin class, real interpreters."""

import asyncio
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

from ray.exceptions import RuntimeEnvSetupError
from tests.backends.rocprof_sys import rocprof_stand_in
from tests.rayenv.stand_ins import Context
from tests.rayenv.stock import pristine

from rlprof_ops.backends import report_names
from rlprof_ops.backends.rocprof_sys import BACKEND, front_end
from rlprof_ops.backends.rocprof_sys.rocprof_wrap import PLUGIN
from rlprof_ops.rayenv.builtin import repair
from rlprof_ops.rayenv.plugin import RlprofPlugin
from rlprof_ops.request import request_from_dict

ray_module = pristine("rocprof_sys")
LOG = logging.getLogger("test")
WORKER = """
import sys, time
print(sys.executable, sys.argv[1:])
try:
    from rocprofsys.user import start_trace, stop_trace
    start_trace(); time.sleep(0.01); stop_trace()
finally:
    sys.exit(7)
"""


class RuntimeEnv(dict):
    def rocprof_sys(self):
        return self.get("_rocprof_sys")


@pytest.fixture
def node(monkeypatch, tmp_path):
    """A node of a job with the stand-in on PATH; returns its folder."""
    script = rocprof_stand_in.install(tmp_path / "opt rocm")
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("RLPROF_NODE", "n1")
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path / "node"))
    monkeypatch.delenv("RLPROF_REQUEST_JSON", raising=False)
    return tmp_path / "node"


def ask(monkeypatch, **capture):
    request = request_from_dict(
        {"captures": [{"backend": "rocprof_sys", "workers": "*policy*", "steps": "3:5", **capture}]}
    )
    monkeypatch.setenv("RLPROF_REQUEST_JSON", request.to_json())


def stock(node):
    copy = type(
        "RocProfSysPlugin", (ray_module.RocProfSysPlugin,), dict(ray_module.RocProfSysPlugin.__dict__)
    )
    repair.replace_methods(copy, BACKEND, PLUGIN)
    return copy(str(node / "session" / "runtime_resources"))


async def set_up(plugin, runtime_env, context):
    await plugin.create(None, runtime_env, context, LOG)
    plugin.modify_context([], runtime_env, context, LOG)
    return context


def repaired(node, config, context=None, **rest):
    return asyncio.run(set_up(stock(node), RuntimeEnv(_rocprof_sys=config, **rest), context or Context()))


def own(context=None):
    return asyncio.run(
        set_up(RlprofPlugin(), {"rlprof": {"worker": "policy_worker", "rank": 2}}, context or Context())
    )


def start_worker(context, tmp_path, before="", program=WORKER):
    """As Ray's `exec_worker` starts it."""
    script = tmp_path / "default worker.py"
    script.write_text(program)
    env = {**os.environ, **context.env_vars}
    command = f"{before}exec {context.py_executable} '{script}' --node-ip-address=1.2.3.4 '{{\"a\": 1}}'"
    return subprocess.run(["bash", "-c", command], env=env, capture_output=True, text=True, timeout=60)


def trace_of(node):
    (path,) = node.glob("inplace/rocprof_sys/**/*.proto")
    return path, json.loads(path.read_text())


def test_the_stock_plugin_loses_the_interpreter():
    """What the repair is for: Ray's command names no interpreter, the front end takes its own."""
    command, _ = ray_module.parse_rocprof_sys_config({"args": {"F": "true"}})

    assert command == ["rocprof-sys-python", "-F", "true", "--"]


def test_the_workers_script_runs_with_the_workers_interpreter(node, tmp_path):
    context = repaired(node, "default", env_vars={"RANK": "3"})

    done = start_worker(context, tmp_path)

    assert done.stdout.startswith(f"{sys.executable} ['--node-ip-address=1.2.3.4', '{{\"a\": 1}}']"), (
        done.stdout + done.stderr
    )
    path, trace = trace_of(node)
    assert path.name == f"worker_process_rank3_n1_{trace['pid']}_perfetto-trace.proto"
    assert trace["options"]["full_filepath"] is True and len(trace["sections"]) == 1


@pytest.mark.parametrize("ours", [True, False], ids=["our key", "Ray's own key"])
def test_a_worker_has_the_umask_that_ray_started_it_with(node, tmp_path, monkeypatch, ours):
    if ours:
        ask(monkeypatch)
        context = own()
    else:
        context = repaired(node, "default")
    made = tmp_path / "checkpoint"
    script = f"open({str(made)!r}, 'w').close()"

    start_worker(context, tmp_path, "umask 0037; ", script)

    assert oct(made.stat().st_mode & 0o777) == "0o640"


def test_a_command_as_interpreter_is_kept(node, tmp_path):
    context = repaired(node, "default", Context(f"env -u NOTHING '{sys.executable}' -B"))

    assert start_worker(context, tmp_path).stdout.startswith(sys.executable)
    assert f"env -u NOTHING '{sys.executable}' -B -m rocprofsys -F true --" in context.py_executable


def test_what_the_user_sets_wins(node):
    context = repaired(
        node,
        {
            "env": {"ROCPROFSYS_OUTPUT_PREFIX": "mine_", "ROCPROFSYS_USE_ROCTX": "false"},
            "args": {"label": "args line", "v": 1},
        },
    )

    assert context.env_vars["ROCPROFSYS_OUTPUT_PREFIX"] == "mine_"
    assert context.env_vars["ROCPROFSYS_USE_ROCTX"] == "false"
    assert context.env_vars["ROCPROFSYS_TIME_OUTPUT"] == "false"
    assert context.py_executable.endswith("-m rocprofsys --label args line -v 1 --")


def test_hostile_values_stay_words(node, tmp_path):
    context = repaired(node, {"args": {"I": "$(touch pwned);x"}})

    subprocess.run(
        ["bash", "-c", f"cd '{tmp_path}' && exec {context.py_executable} /dev/null"],
        timeout=60,
        capture_output=True,
    )

    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"T": "hip"}, "unrecognized arguments: -T hip"),
        ({"output-format": "json"}, "unrecognized arguments: --output-format=json"),
    ],
)
def test_an_option_that_rlinf_documents_and_the_tool_refuses_is_one_error(node, args, said):
    with pytest.raises(RuntimeEnvSetupError) as caught:
        repaired(node, {"args": args}, env_vars={"RANK": "1"})

    assert "rlprof: node n1, a worker without a name rank 1: `python -m rocprofsys" in str(caught.value)
    assert said in str(caught.value)


def test_an_interpreter_that_cannot_run_it_is_found_although_the_exit_code_is_0(node, tmp_path):
    liar = tmp_path / "python-liar"
    liar.write_text("#!/bin/bash\necho source code string cannot contain null bytes\n")
    liar.chmod(0o755)

    with pytest.raises(
        RuntimeEnvSetupError, match="exit code 0, but it did not run the program: source code string"
    ):
        repaired(node, "default", Context(str(liar)))


def test_another_python_than_it_was_built_for_is_said(monkeypatch, tmp_path):
    script = rocprof_stand_in.install(tmp_path, version=(3, 6))
    monkeypatch.setenv("RLPROF_ROCPROF_SYS", str(script))

    with pytest.raises(front_end.FrontEndError, match=r"is built for Python 3\.6, but workers run 3\.\d+"):
        front_end.find()


def test_a_missing_front_end_is_said(monkeypatch):
    monkeypatch.setenv("RLPROF_ROCPROF_SYS", "/nowhere/rocprof-sys-python")

    with pytest.raises(
        front_end.FrontEndError, match="RLPROF_ROCPROF_SYS='/nowhere/rocprof-sys-python' is no program"
    ):
        front_end.find()


def test_the_requests_worker_records_its_window_alone_and_is_named_by_it(node, monkeypatch, tmp_path):
    ask(monkeypatch)

    context = own()
    done = start_worker(context, tmp_path)

    path, trace = trace_of(node)
    assert path.parent == node / "inplace/rocprof_sys/policy_worker/rank2"
    assert path.name == f"policy_worker_rank2_step3-4_n1_{trace['pid']}_perfetto-trace.proto"
    assert trace["options"]["builtin"] is True, "Python functions are not traced unless asked for"
    ((begin, end),) = trace["sections"]
    assert 0.009e9 < end - begin < 5e9, done.stderr
    assert report_names.parse(path.name).pid == trace["pid"]


def test_several_windows_are_in_one_trace_without_steps_in_its_name(node, monkeypatch):
    ask(monkeypatch, steps="3:5,7", flags=["trace-c"], env={"ROCPROFSYS_PERFETTO_BUFFER_SIZE_KB": "4096"})

    context = own()

    assert context.env_vars["ROCPROFSYS_OUTPUT_PREFIX"] == "policy_worker_rank2_n1_%pid%_"
    assert context.env_vars["ROCPROFSYS_PERFETTO_BUFFER_SIZE_KB"] == "4096"
    assert context.py_executable.endswith("-m rocprofsys --trace-c --")


@pytest.mark.parametrize(("on_error", "fails"), [("fail", True), ("continue", False)])
def test_without_the_tool_the_request_decides(node, monkeypatch, on_error, fails):
    ask(monkeypatch, on_error=on_error)
    monkeypatch.setenv("RLPROF_ROCPROF_SYS", "/nowhere/x")
    context = Context()

    if fails:
        with pytest.raises(
            RuntimeError, match="rlprof: node n1, worker 'policy_worker' rank 2: no rocprof-sys"
        ):
            own(context)
    else:
        own(context)
        assert "no rocprof-sys" in context.env_vars["RLPROF_NOT_WRAPPED"]
    assert context.py_executable == sys.executable


def test_an_unselected_worker_is_left_alone(node, monkeypatch):
    ask(monkeypatch, ranks=[0])

    assert own().py_executable == sys.executable


@pytest.mark.parametrize(
    ("options", "flags", "words"),
    [
        ({"F": "true"}, (), ["-F", "true"]),
        ({"trace-c": "true"}, ("b",), ["-b", "--trace-c=true"]),
        ({"label": "args,line"}, (), ["--label", "args", "line"]),
        ({"MI": "a.py b.py"}, (), ["-MI", "a.py", "b.py"]),
        ({"annotate-trace": None}, (), ["--annotate-trace"]),
    ],
)
def test_options_are_rendered_as_the_front_end_takes_them(options, flags, words):
    assert front_end.render({**dict.fromkeys(flags), **options}) == words


def test_the_stand_in_ends_with_0_whatever_the_script_does(node, tmp_path):
    """The rule that makes the trial need a proof; the real front end has it too."""
    script = Path(tmp_path / "fails.py")
    script.write_text("raise SystemExit(7)")

    done = subprocess.run(
        ["rocprof-sys-python", "--", str(script)],
        env={
            **os.environ,
            "PYTHON_EXECUTABLE": sys.executable,
            "ROCPROFSYS_OUTPUT_PATH": str(tmp_path / "out"),
        },
        capture_output=True,
        timeout=60,
    )

    assert done.returncode == 0
