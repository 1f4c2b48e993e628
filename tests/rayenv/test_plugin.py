"""The runtime-env plugin without Ray: what it changes in a context, and the shell text that results."""

import json
import logging
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.nsys_stand_in import FakeNsys
from tests.rayenv.stand_ins import Context

from rlprof_ops import rayenv
from rlprof_ops.backends.nsight.nsys_wrap import nsys_command
from rlprof_ops.backends.wrapping import Identity
from rlprof_ops.errors import RlprofError
from rlprof_ops.rayenv.plugin import RlprofPlugin
from rlprof_ops.request import CaptureSpec, request_from_dict
from rlprof_ops.runtime.process.ray_children import HOOK_VARIABLE
from rlprof_ops.trainers.nemo_rl.nemo_rl_names import LIBRARY_PATHS

LOG = logging.getLogger("test")
HOME = Path(__file__).parents[2]


@pytest.fixture
def node(monkeypatch, tmp_path):
    """A node of a job with a request and an nsys that prints its arguments; `node(**capture)` sets it up."""
    fake = FakeNsys(tmp_path)

    def set_up(**capture):
        request = request_from_dict({"captures": [{"workers": ["*policy*"], "steps": "3:5", **capture}]})
        monkeypatch.setenv("RLPROF_REQUEST_JSON", request.to_json())
        monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path / "node dir's"))
        monkeypatch.setenv("RLPROF_JOB", "4711.r1")
        monkeypatch.setenv("RLPROF_NSYS", str(fake))
        return fake

    return set_up


def context(py_executable=sys.executable):
    return Context(py_executable, MINE="1")


def modify(value, py_executable=sys.executable):
    made = context(py_executable)
    runtime_env = {"rlprof": value}
    RlprofPlugin.validate(runtime_env)
    RlprofPlugin().modify_context([], runtime_env, made, LOG)
    return made


def test_a_selected_worker_is_wrapped_and_its_interpreter_text_is_kept(node, tmp_path):
    node(options={"t": "nvtx"}, env={"NCCL_DEBUG": "INFO"})

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
        "RLPROF_NODE_DIR": str(tmp_path / "node dir's"),
    }
    assert (tmp_path / "node dir's" / "tmp").is_dir()


@pytest.mark.parametrize("mine", ["/mine", ""])
def test_a_megatron_worker_under_nsys_finds_its_libraries(node, monkeypatch, mine):
    """NeMo RL's document: else libtransformer_engine.so does not load."""
    node()
    monkeypatch.setenv("LD_LIBRARY_PATH", mine)
    needed = LIBRARY_PATHS[os.uname().machine]
    for worker in (
        "megatron_policy_worker",
        "megatron_quant_policy_worker",
        "teacher_megatron_policy_worker",
    ):
        path = modify({"worker": worker, "rank": 0}).env_vars["LD_LIBRARY_PATH"]
        assert path == (f"{needed}:/mine" if mine else needed)
    for value in ({"worker": "dtensor_policy_worker", "rank": 0}, {"worker": "megatron_reward", "rank": 0}):
        assert "LD_LIBRARY_PATH" not in modify(value).env_vars
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{needed}:/mine")  # by RLPROF_TRAINER=nemo_rl_megatron
    assert "LD_LIBRARY_PATH" not in modify({"worker": "megatron_policy_worker", "rank": 0}).env_vars


def test_a_megatron_worker_that_is_not_selected_keeps_its_libraries(node):
    node(ranks=[0])
    assert "LD_LIBRARY_PATH" not in modify({"worker": "megatron_policy_worker", "rank": 1}).env_vars


def test_the_settings_of_megatron_have_the_same_folders():
    lines = (HOME / "env" / "trainer_nemo_rl_megatron.env").read_text().splitlines()
    assert {f"RLPROF_LD_LIBRARY_PATH_{name.upper()}={path}" for name, path in LIBRARY_PATHS.items()} <= set(
        lines
    )


def test_a_wrapped_worker_is_said_in_the_agents_log(node, caplog):
    node(ranks=[0])
    with caplog.at_level(logging.INFO):
        modify({"worker": "policy_worker", "rank": 0})
        modify({"worker": "policy_worker", "rank": 1})

    said = [record.getMessage() for record in caplog.records if "enabled" in record.getMessage()]
    assert said == [
        "rlprof: Nsight profiling enabled for worker 'policy_worker' rank 0 (matched pattern '*policy*')"
    ]


def test_bash_hands_nsys_exactly_what_was_meant(node, tmp_path):
    """As Ray's `exec_worker` runs it: hostile option values and worker names arrive as single words."""
    fake = node()
    hostile = CaptureSpec(
        options={"t": "nvtx", "nvtx-capture": "a|b;$(touch pwned) 'c'"}, flags=("python-backtrace",)
    )
    command = nsys_command(Identity("x; policy $HOME", None), hostile, os.environ, str(fake))

    text = command.shell(shlex.quote(sys.executable))
    program = "import sys; open('ran', 'w').write(repr(sys.argv[1:]))"
    words = shlex.join(["-c", program, "--raylet-name=a 'b'", ""])
    subprocess.run(["bash", "-c", f"exec {text} {words}"], cwd=tmp_path, timeout=30, check=True)

    ((session, tmp),) = fake.environments()
    (argv,) = fake.words()
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
    assert argv[6] == "/bin/sh" and program not in argv, "it does not have the program's words"
    assert (tmp_path / "ran").read_text() == repr(["--raylet-name=a 'b'", ""])
    assert list((tmp_path / "node dir's" / "tmp").iterdir()) == []
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("options", [{}, {"capture-range": "none"}], ids=["session", "range"])
def test_a_worker_has_the_umask_that_ray_started_it_with(node, options, tmp_path):
    node(options=options)
    made = modify({"worker": "policy_worker", "rank": 0}, shlex.quote(sys.executable))
    program = "import os; print(oct(os.umask(0)))"

    done = subprocess.run(
        ["bash", "-c", f"umask 0037; exec {made.py_executable} -c {shlex.quote(program)}"],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=tmp_path,
    )

    assert done.stdout == "0o37\n", done.stderr


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
