"""The runtime-env plugin without Ray: what it changes in a context, and the shell text that results."""

import json
import logging
import os
import re
import shlex
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from rlprof_ops import rayenv
from rlprof_ops.errors import RlprofError
from rlprof_ops.rayenv.plugin import RlprofPlugin
from rlprof_ops.rayenv.wrap import command
from rlprof_ops.request import request_from_dict
from rlprof_ops.runtime.process.ray_children import HOOK_VARIABLE

LOG = logging.getLogger("test")


@pytest.fixture
def node(monkeypatch, tmp_path):
    """A node of a job with a request and an nsys that prints its arguments; `node(**capture)` sets it up."""
    fake = tmp_path / "bin dir" / "nsys"
    fake.parent.mkdir()
    # Stands in for nsys: shows what it was given, then runs the program as nsys would.
    fake.write_text(
        '#!/bin/bash\nprintf "%s\\n" "$RLPROF_NSYS_SESSION" "$TMPDIR" "$@"\nleft=$(cat "$0.fails" 2>'
        ' /dev/null || echo 0); [ "$left" = 0 ] || { echo $((left - 1)) > "$0.fails"; echo "End of file" >&2;'
        ' exit 3; }\nuntil [ "$1" = /bin/sh ]; do shift; done; exec "$@"\n'
    )
    fake.chmod(0o755)

    def set_up(**capture):
        request = request_from_dict({"captures": [{"workers": ["*policy*"], "steps": "3:5", **capture}]})
        monkeypatch.setenv("RLPROF_REQUEST_JSON", request.to_json())
        monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path / "node dir's"))
        monkeypatch.setenv("RLPROF_JOB", "4711.r1")
        monkeypatch.setenv("RLPROF_NSYS", str(fake))
        return tmp_path

    return set_up


class Context:
    """The part of Ray's RuntimeEnvContext that plugins change."""

    def __init__(self, py_executable):
        self.py_executable, self.env_vars = py_executable, {"MINE": "1"}


def context(py_executable=sys.executable):
    return Context(py_executable)


def modify(value, py_executable=sys.executable):
    made = context(py_executable)
    runtime_env = {"rlprof": value}
    RlprofPlugin.validate(runtime_env)
    RlprofPlugin().modify_context([], runtime_env, made, LOG)
    return made


def test_a_selected_worker_is_wrapped_and_its_interpreter_text_is_kept(node):
    tmp_path = node(options={"t": "nvtx"}, env={"NCCL_DEBUG": "INFO"})

    made = modify({"worker": "dtensor_policy_worker", "rank": 3}, "uv run --project '/a b' python")

    assert made.py_executable.endswith(
        " rlprof-4711.r1-dtensor_policy_worker-r3- continue 2 -t nvtx uv run --project '/a b' python"
    )
    made.env_vars.pop(HOOK_VARIABLE, None)
    assert made.env_vars == {
        "MINE": "1",
        "NCCL_DEBUG": "INFO",
        "RLPROF_WORKER": "dtensor_policy_worker",
        "RLPROF_RANK": "3",
    }
    assert (tmp_path / "node dir's" / "tmp").is_dir()


def test_bash_hands_nsys_exactly_what_was_meant(node):
    """As Ray's `exec_worker` runs it: hostile option values and worker names arrive as single words."""
    tmp_path = node()
    hostile = SimpleNamespace(
        options={"t": "nvtx", "nvtx-capture": "a|b;$(touch pwned) 'c'"}, flags=("python-backtrace",)
    )
    prefix = command.session_prefix("x; policy $HOME", None, os.environ)

    text = command.wrapped(
        shlex.quote(sys.executable), prefix, hostile, os.environ, os.environ["RLPROF_NSYS"]
    )
    done = subprocess.run(
        ["bash", "-c", f"exec {text} -c pass"], capture_output=True, text=True, cwd=tmp_path, timeout=30
    )

    session, tmp, *argv = done.stdout.splitlines()
    assert re.fullmatch(r"rlprof-4711\.r1-x--policy--HOME-r0-\d+-1", session)
    assert tmp == str(tmp_path / "node dir's" / "tmp")
    assert argv[:6] == [
        "launch",
        f"--session-new={session}",
        "-t",
        "nvtx",
        "--nvtx-capture=a|b;$(touch pwned) 'c'",
        "--python-backtrace",
    ]
    assert argv[-3:] == [sys.executable, "-c", "pass"]
    assert list((tmp_path / "node dir's" / "tmp").iterdir()) == []
    assert not (tmp_path / "pwned").exists()


def test_an_nsys_that_hangs_before_the_worker_began_is_ended(node, monkeypatch):
    """Seen with nsys 2023.4 on a busy machine. What it starts after its time ends at once."""
    tmp_path = node()
    nsys = tmp_path / "bin dir" / "nsys"
    text = nsys.read_text()
    nsys.write_text(
        text.replace(
            'until [ "$1"',
            '[ -e "$0.hung" ] || { touch "$0.hung"; until [ "$1" = /bin/sh ]; do shift; done; (sleep 3; "$@")'
            ' & exec sleep 600; }\nuntil [ "$1"',
        )
    )
    monkeypatch.setattr(command, "_patience", lambda env: "1")
    made = modify({"worker": "policy_worker", "rank": 0}, shlex.quote(sys.executable))
    program = f"open({str(tmp_path / 'ran')!r}, 'a').write('x'); import sys; sys.exit(7)"
    done = subprocess.run(
        ["bash", "-c", f"exec {made.py_executable} -c {shlex.quote(program)}"],
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert done.returncode == 7, done.stderr
    assert "rlprof: nsys launch hung for 1 s before the worker began (try 1 of 3)" in done.stderr
    time.sleep(4)
    assert (tmp_path / "ran").read_text() == "x"


@pytest.mark.parametrize("fails, on_error, code, said", [
    (0, "continue", 7, "session"), (2, "continue", 7, "session"), (3, "continue", 7, "unprofiled"), (3, "fail", 3, None),
])  # fmt: skip
def test_an_nsys_that_ends_before_the_worker_began_is_tried_again(node, fails, on_error, code, said):
    """nsys 2023.4 does that on a busy machine; Ray alone would wait for the worker for ever."""
    tmp_path = node(on_error=on_error)
    (tmp_path / "bin dir" / "nsys.fails").write_text(str(fails))
    made = modify({"worker": "policy_worker", "rank": 0}, shlex.quote(sys.executable))
    program = (
        "import os, sys; print('unprofiled' if os.environ.get('RLPROF_NOT_WRAPPED') else 'session',"
        " os.environ.get('RLPROF_NSYS_SESSION')); sys.exit(7)"
    )
    done = subprocess.run(
        ["bash", "-c", f"exec {made.py_executable} -c {shlex.quote(program)}"],
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert done.returncode == code, done.stderr
    last = done.stdout.splitlines()[-1]
    if said == "session":
        assert last.startswith("session rlprof-4711.r1-policy_worker-r0-") and last.endswith(f"-{fails + 1}")
    elif said:
        assert last == "unprofiled None"
    assert done.stderr.count("before the worker began") == fails
    assert list((tmp_path / "node dir's" / "tmp").iterdir()) == []


@pytest.mark.parametrize("value", [{"worker": "reward", "rank": 0}, {"worker": "policy_worker", "rank": 2}])
def test_who_is_not_selected_is_left_as_is(node, value):
    node(ranks=[0, 1])

    assert vars(modify(value)) == vars(context())


def test_a_torch_capture_needs_no_wrapping(node):
    node(backend="torch")

    made = modify({"worker": "policy_worker", "rank": 0})

    assert made.py_executable == sys.executable
    assert made.env_vars["RLPROF_WORKER"] == "policy_worker"


def test_without_a_request_nothing_happens(monkeypatch):
    monkeypatch.delenv("RLPROF_REQUEST_JSON", raising=False)

    assert vars(modify({"worker": "policy_worker", "rank": 0})) == vars(context())


def test_a_missing_nsys_fails_the_worker_when_asked_to(node, monkeypatch):
    node(on_error="fail")
    monkeypatch.setenv("RLPROF_NSYS", "/nowhere/nsys")
    monkeypatch.setenv("RLPROF_NODE", "gpu012")

    with pytest.raises(RuntimeError) as caught:
        modify({"worker": "policy_worker", "rank": 0})

    assert (
        str(caught.value)
        == "rlprof: no nsys on node gpu012 for worker 'policy_worker' rank 0: RLPROF_NSYS='/nowhere/nsys' is"
        " no program. Install nsight-systems-cli there (or in the container), set RLPROF_NSYS to it, or"
        " set `on_error: continue` in the request to train unprofiled"
    )


def test_a_missing_nsys_is_told_to_the_worker_otherwise(node, monkeypatch):
    node(on_error="continue")
    monkeypatch.setenv("RLPROF_NSYS", "/nowhere/nsys")

    made = modify({"worker": "policy_worker", "rank": 0})

    assert made.py_executable == sys.executable
    assert "no nsys on node" in made.env_vars["RLPROF_NOT_WRAPPED"]


def test_the_agent_survives_a_request_it_cannot_read(monkeypatch, caplog):
    monkeypatch.setenv("RLPROF_REQUEST_JSON", "not json")

    assert vars(modify({"worker": "policy_worker", "rank": 0})) == vars(context())
    assert "starts unprofiled" in caplog.text


@pytest.mark.parametrize(
    "value",
    [
        "policy_worker",
        {"rank": 0},
        {"worker": ""},
        {"worker": "a", "rank": -1},
        {"worker": "a", "rank": "0"},
        {"worker": "a", "steps": "3:5"},
    ],
)
def test_a_wrong_runtime_env_is_refused_before_the_worker_starts(value):
    with pytest.raises(ValueError, match=r"expected \{\"worker\": \"policy_worker\", \"rank\": 0\}"):
        RlprofPlugin.validate({"rlprof": value})


def test_loading_leaves_a_marker(node, tmp_path):
    node()
    node_dir = tmp_path / "node dir's"
    node_dir.mkdir()

    RlprofPlugin()

    assert json.loads((node_dir / "plugin_loaded").read_text()) == {
        "pid": os.getpid(),
        "python": sys.executable,
    }


def test_registration_keeps_other_plugins_and_is_idempotent():
    env = {"RAY_RUNTIME_ENV_PLUGINS": '[{"class": "site.Other"}]'}

    once = rayenv.environment(env)

    assert json.loads(once["RAY_RUNTIME_ENV_PLUGINS"]) == [
        {"class": "site.Other"},
        {"class": "rlprof_ops.rayenv.plugin.RlprofPlugin", "priority": 90},
    ]
    assert rayenv.environment(once) == once


def test_a_broken_registration_is_named():
    with pytest.raises(RlprofError, match="RAY_RUNTIME_ENV_PLUGINS is 'x': a JSON list"):
        rayenv.environment({"RAY_RUNTIME_ENV_PLUGINS": "x"})


@pytest.mark.ray
def test_the_import_test_tells_a_good_python_from_a_bad_one(tmp_path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    assert rayenv.check_import(env) is None
    assert "No such file" in rayenv.check_import(env, python=str(tmp_path / "python"))
    broken = {**env, "RAY_RUNTIME_ENV_PLUGINS": '[{"class": "nowhere.Plugin"}]'}
    assert "nowhere" in rayenv.check_import(broken)
