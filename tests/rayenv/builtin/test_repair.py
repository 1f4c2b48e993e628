"""The repair of Ray's nsight plugin, method by method: real plugin classes of the installed Ray, a
stand-in for nsys.
"""

import asyncio
import json
import logging
import os
import shlex
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

import ray._private.runtime_env.nsight
from ray.exceptions import RuntimeEnvSetupError
from tests.nsys_stand_in import FakeNsys
from tests.rayenv.stand_ins import Context
from tests.rayenv.stock import pristine
from tests.waits import wait_until

from rlprof_ops.backends.nsight import BACKEND
from rlprof_ops.backends.nsight.ray_plugin import PLUGIN
from rlprof_ops.rayenv.builtin import repair
from rlprof_ops.request import request_from_dict

ray_module = pristine("nsight")
LOG = logging.getLogger("test")


class RuntimeEnv(dict):
    """The part of Ray's RuntimeEnv that its nsight plugin uses."""

    def nsight(self):
        return self.get("_nsight")


@pytest.fixture
def plugin(monkeypatch, tmp_path):
    """A repaired copy of Ray's plugin on a node of a job; its calls of nsys are in `plugin.calls()`."""
    fake = FakeNsys(tmp_path)
    monkeypatch.setenv("RLPROF_NSYS", str(fake))
    monkeypatch.setenv("RLPROF_NODE", "n1")
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path / "node"))
    monkeypatch.delenv("RLPROF_REQUEST_JSON", raising=False)
    copy = type("NsightPlugin", (ray_module.NsightPlugin,), dict(ray_module.NsightPlugin.__dict__))
    repair.replace_methods(copy, BACKEND, PLUGIN)
    made = copy(str(tmp_path / "session" / "runtime_resources"))
    made.calls, made.nsys = fake.calls, fake
    made.node_dir = tmp_path / "node"
    return made


def ask(monkeypatch, **capture):
    request = request_from_dict({"captures": [{"steps": "3:5", **capture}]})
    monkeypatch.setenv("RLPROF_REQUEST_JSON", request.to_json())


async def set_up(plugin, runtime_env, py_executable="/opt/venv/bin/python3"):
    context = Context(py_executable)
    runtime_env = RuntimeEnv(runtime_env)
    await plugin.create(None, runtime_env, context, LOG)
    plugin.modify_context([], runtime_env, context, LOG)
    return context


def wrapped(plugin, nsight, py_executable="/opt/venv/bin/python3", **rest):
    return asyncio.run(set_up(plugin, {"_nsight": nsight, **rest}, py_executable))


def words(context):
    return shlex.split(context.py_executable)


def test_the_interpreter_is_kept_whatever_it_is(plugin):
    assert wrapped(plugin, "default").py_executable.endswith(" /opt/venv/bin/python3")
    assert wrapped(plugin, "default", "uv run --project '/a b' python").py_executable.endswith(
        " uv run --project '/a b' python"
    )


def test_report_has_worker_rank_steps_and_host_for_nemo_rl(plugin):
    options = {
        "t": "cuda,nvtx",
        "o": "'dtensor_policy_worker_3:5_%p'",
        "stop-on-exit": "true",
        "capture-range": "cudaProfilerApi",
    }

    context = wrapped(plugin, options, env_vars={"RANK": "3"})

    output = words(context)[words(context).index("-o") + 1]
    assert output == str(
        plugin.node_dir
        / "inplace/nsight/dtensor_policy_worker/rank3/dtensor_policy_worker_rank3_step3-4_n1_%p"
    )
    assert os.path.isdir(os.path.dirname(output))
    assert options["o"] == "'dtensor_policy_worker_3:5_%p'", "the trainer's own dictionary is not changed"


@pytest.mark.parametrize(
    ("asked", "stem"),
    [
        (None, "worker_process_rank5_n1_%p"),
        ("'worker_process_%p'", "worker_process_rank5_n1_%p"),
        ("my report_%p", "my-report_rank5_n1_%p"),
        ("rlinf_profile_ActorGroup_2_%p", "ActorGroup_rank5_n1_%p"),
    ],
)
def test_names_of_others_get_rank_and_host(plugin, asked, stem):
    context = wrapped(plugin, {"t": "nvtx", **({"o": asked} if asked else {})}, env_vars={"RANK": "5"})

    assert os.path.basename(words(context)[words(context).index("-o") + 1]) == stem


def test_an_absolute_output_stays(plugin):
    assert "-o /lustre/me/x_%p" in wrapped(plugin, {"t": "nvtx", "output": "/lustre/me/x_%p"}).py_executable


def test_without_a_job_reports_go_where_ray_has_them(plugin, monkeypatch):
    monkeypatch.delenv("RLPROF_NODE_DIR")

    context = wrapped(plugin, "default")

    assert words(context)[-2].startswith(str(plugin._nsight_dir) + "/worker_process_rank0_")
    assert "TMPDIR" not in context.py_executable


def test_every_option_reaches_nsys_as_one_word(plugin, tmp_path):
    hostile = {
        "t": "cuda,nvtx",
        "nvtx-capture": "a|b;$(touch pwned) 'c\"",
        "-s": "none",
        "python-backtrace": None,
        "x": True,
    }

    text = wrapped(plugin, hostile, "echo").py_executable
    subprocess.run(["bash", "-c", f"exec {text} default_worker.py"], check=True, cwd=tmp_path, timeout=30)

    assert plugin.calls()[-1].startswith(
        "profile -t cuda,nvtx --nvtx-capture=a|b;$(touch pwned) 'c\" -s none --python-backtrace -x true -o "
    )
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("inner", [False, True], ids=["worker", "inner worker of an engine"])
def test_a_worker_has_the_umask_that_ray_started_it_with(plugin, tmp_path, inner):
    options = {"t": "nvtx", "o": "vllm_tp_worker_3:5_%p"} if inner else {"t": "nvtx"}
    text = wrapped(plugin, options, "sh -c umask").py_executable

    done = subprocess.run(
        ["bash", "-c", f"umask 0037; exec {text} default_worker.py"],
        check=True,
        cwd=tmp_path,
        timeout=30,
        capture_output=True,
        text=True,
    )

    assert done.stdout == "0037\n"
    assert plugin.calls()[-1].startswith("profile -t nvtx -o ")


def test_a_worker_that_nsys_does_not_begin_is_tried_again_and_fails_as_rays_own_would(plugin, tmp_path):
    text = wrapped(plugin, {"t": "nvtx"}, "sh -c umask").py_executable
    plugin.nsys.fail(3)

    done = subprocess.run(["bash", "-c", f"exec {text}"], timeout=30, capture_output=True, text=True)

    assert (done.returncode, done.stdout, done.stderr.count("before the program began")) == (3, "", 3)


def test_quotes_for_the_stock_plugins_shell_are_taken_off(plugin):
    assert "--nvtx-capture=a|b" in words(wrapped(plugin, {"nvtx-capture": "'a|b'"}))


def test_same_options_are_tried_once_others_each(plugin):
    async def many():
        same = [set_up(plugin, {"_nsight": {"t": "nvtx"}, "env_vars": {"RANK": str(r)}}) for r in range(8)]
        other = [set_up(plugin, {"_nsight": {"t": "osrt"}})]
        return await asyncio.gather(*same, *other)

    contexts = asyncio.run(many())

    assert sorted(call.split(" -o ")[0] for call in plugin.calls()) == ["profile -t nvtx", "profile -t osrt"]
    assert len({context.py_executable for context in contexts}) == 9
    assert sorted(os.listdir(plugin.node_dir / "tmp")) == [], "the trial's folder is gone"


def test_concurrent_environments_keep_their_own_options(plugin):
    async def both():
        return await asyncio.gather(
            set_up(plugin, {"_nsight": {"t": "nvtx"}}),
            set_up(plugin, {"_nsight": {"t": "osrt"}}, "uv run python"),
        )

    one, two = asyncio.run(both())

    assert " -t nvtx " in one.py_executable and one.py_executable.endswith(" /opt/venv/bin/python3")
    assert " -t osrt " in two.py_executable and two.py_executable.endswith(" uv run python")


def test_a_wrong_option_is_one_error_with_node_and_worker(plugin):
    with pytest.raises(RuntimeEnvSetupError) as caught:
        wrapped(plugin, {"bogus": "1", "o": "'dtensor_policy_worker_3:5_%p'"}, env_vars={"RANK": "1"})

    assert (
        "rlprof: node n1, worker 'dtensor_policy_worker' rank 1: `nsys profile --bogus=1` does not work: exit"
        " code 1: unrecognised option '--bogus=1'" in str(caught.value)
    )


def test_an_nsys_that_hangs_is_ended_in_time(plugin, monkeypatch):
    monkeypatch.setenv("RLPROF_CHECK_TIMEOUT_S", "1")
    begun = time.monotonic()

    with pytest.raises(RuntimeEnvSetupError, match="does not work: did not return within 1 s"):
        wrapped(plugin, {"hang": "1"})

    assert time.monotonic() - begun < 60
    wait_until(lambda: not plugin.nsys.hanging())


def test_no_nsys_is_said(plugin, monkeypatch):
    monkeypatch.setenv("RLPROF_NSYS", "/nowhere/nsys")

    with pytest.raises(RuntimeEnvSetupError, match="rlprof: node n1, a worker without a name: no nsys"):
        wrapped(plugin, "default")


def test_on_error_continue_starts_the_worker_and_tells_the_manifest(plugin, monkeypatch):
    ask(monkeypatch, workers="*policy*", on_error="continue")

    context = wrapped(plugin, {"bogus": "1", "o": "'dtensor_policy_worker_3:5_%p'"}, env_vars={"RANK": "1"})

    assert context.py_executable == "/opt/venv/bin/python3"
    assert "--bogus" in context.env_vars["RLPROF_NOT_WRAPPED"]
    (log,) = (plugin.node_dir / "events").glob("*.jsonl")
    registered, failed = map(json.loads, log.read_text().splitlines())
    assert (registered["worker"], registered["rank"]) == ("dtensor_policy_worker", 1)
    assert (failed["event"], failed["backend"], failed["steps"]) == ("failed", "nsight", [3, 5])
    assert "does not work" in failed["reason"]


@pytest.mark.parametrize(
    ("capture", "name", "found"),
    [
        ({"workers": "*policy*"}, "dtensor_policy_worker", "1"),
        ({"workers": "*generation*"}, "dtensor_policy_worker", None),
        ({"workers": "vllm_tp_worker"}, "vllm_tp_worker", "1"),
        ({"workers": "vllm_tp_worker", "ranks": [0]}, "vllm_tp_worker", None),  # its siblings share the env
    ],
)
def test_a_worker_of_the_trainers_own_key_has_the_env_of_its_capture(
    plugin, monkeypatch, caplog, capture, name, found
):
    ask(monkeypatch, env={"DEEP": "1"}, **capture)

    context = wrapped(plugin, {"t": "nvtx", "o": f"{name}_3:5_%p"})

    assert context.env_vars.get("DEEP") == found
    assert ("env is left out" in caplog.text) == ("ranks" in capture)


@pytest.mark.parametrize(
    ("runtime_env", "wanted"),
    [
        ({"o": "'dtensor_policy_worker_3:5_%p'", "RANK": "0"}, True),
        ({"o": "'dtensor_policy_worker_3:5_%p'", "RANK": "1"}, False),
        ({"o": "'vllm_generation_worker_3:5_%p'", "RANK": "0"}, False),
        ({"RANK": "0"}, True),  # verl: no name, but a rank
        ({"RANK": "7"}, False),
        ({}, False),  # verl's agent loops and servers, which inherit the controller's options
    ],
)
def test_the_request_decides_who_stays_wrapped(plugin, monkeypatch, runtime_env, wanted):
    ask(monkeypatch, workers="*policy*", ranks=[0])
    options = {"t": "nvtx", **({"o": runtime_env["o"]} if "o" in runtime_env else {})}

    context = wrapped(plugin, options, env_vars={k: v for k, v in runtime_env.items() if k != "o"})

    assert (context.py_executable != "/opt/venv/bin/python3") is wanted


def test_a_request_for_another_backend_leaves_the_trainers_choice(plugin, monkeypatch):
    ask(monkeypatch, workers="*policy*", backend="torch")

    assert "nsys" in wrapped(plugin, "default").py_executable


def test_our_own_key_wins_over_the_trainers_options(plugin, monkeypatch):
    ask(monkeypatch, workers="*policy*")

    context = wrapped(plugin, "default", rlprof={"worker": "policy_worker", "rank": 0})

    assert context.py_executable == "/opt/venv/bin/python3"


@pytest.mark.parametrize("config", ["fast", ["t"], {"o": "a", "output": "b"}, {"": "x"}])
def test_a_config_that_makes_no_command_is_refused(plugin, config):
    with pytest.raises(RuntimeEnvSetupError, match="rlprof: the "):
        wrapped(plugin, config)


# -- which plugins may be repaired


def test_the_installed_rays_plugins_are_known():
    from ray._private.runtime_env.rocprof_sys import RocProfSysPlugin

    program = (
        "from rlprof_ops import backends\nfrom rlprof_ops.rayenv.builtin import repair\n"
        "from ray._private.runtime_env.nsight import NsightPlugin as N\n"
        "from ray._private.runtime_env.rocprof_sys import RocProfSysPlugin as R\n"
        "ours = [backends.contract.ray_plugin_of(backends.get(n)) for n in ('nsight', 'rocprof_sys')]\n"
        "print(*map(repair.why_unknown, (N, R), ('_nsight', '_rocprof_sys'), ours))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout == "None None\n", result.stderr
    assert RocProfSysPlugin.name == "_rocprof_sys"


def test_a_plugin_that_does_more_is_left_alone_with_a_message(caplog, monkeypatch):
    class Newer:
        name = "_nsight"

        async def create(self, uri, runtime_env, context, logger):
            await runtime_env.upload_report()

        def modify_context(self, uris, runtime_env, context, logger):
            context.py_executable = "x"

    monkeypatch.setattr(ray._private.runtime_env.nsight, "NsightPlugin", Newer)
    before = Newer.create

    repair.install(LOG)

    assert Newer.create is before
    assert "is left as it is: create does more than in Ray 2.49 to 2.60 (upload_report)" in caplog.text


@pytest.mark.parametrize(
    "other",
    [
        SimpleNamespace(name="_other"),
        SimpleNamespace(name="_nsight"),
        type("P", (), {"name": "_nsight", "create": lambda self: 0}),
    ],
)
def test_other_shapes_are_left_alone(other):
    assert repair.why_unknown(other, BACKEND.ray_key, PLUGIN)


def test_install_twice_repairs_once(monkeypatch):
    copy = type(
        "NsightPlugin",
        (),
        {
            "name": "_nsight",
            "create": ray_module.NsightPlugin.create,
            "modify_context": ray_module.NsightPlugin.modify_context,
        },
    )
    monkeypatch.setattr(ray._private.runtime_env.nsight, "NsightPlugin", copy)
    assert repair.why_unknown(copy, BACKEND.ray_key, PLUGIN) is None
    repair.install(LOG)
    once = copy.create

    repair.install(LOG)

    assert copy.create is once


@pytest.mark.parametrize(
    ("options", "selects", "begins"),
    [
        ({"t": "nvtx", "o": "vllm_tp_worker_3:5_%p"}, "vllm_tp_worker", "launch"),
        ({"t": "nvtx", "o": "vllm_tp_worker_3:5_%p"}, None, "profile"),
        ({"t": "nvtx", "o": "vllm_tp_worker_3:5_%p", "c": "nvtx"}, "vllm_tp_worker", "profile"),
        ({"t": "nvtx", "o": "vllm_tp_worker_3:5_%p", "c": "cudaProfilerApi"}, None, "launch"),
        ({"t": "nvtx"}, "controller", "profile"),
        ({"t": "nvtx", "o": "'policy_worker_3:5_%p'"}, "policy_worker", "profile"),
    ],
)
def test_what_a_supervisor_opens_windows_of_is_a_session(plugin, monkeypatch, options, selects, begins):
    """Whom the request selects by name, and whom the trainer's cudaProfilerStart would open a range of."""
    plugin.node_dir.mkdir()
    (plugin.node_dir / "clock.sock").touch()
    if selects:
        ask(monkeypatch, workers=[selects])
    text = wrapped(plugin, options, "sh -c 'echo $RLPROF_WORKER $RLPROF_RANK'").py_executable
    done = subprocess.run(["bash", "-c", f"exec {text}"], timeout=30, capture_output=True, text=True)
    assert done.returncode == 0 and plugin.calls()[-1].startswith(f"{begins} "), done.stderr
    if begins == "launch":
        assert "--session-new=rlprof-local-vllm_tp_worker-r0-" in plugin.calls()[-1]


def test_what_a_session_keeps_of_the_options_is_told_to_who_opens_its_windows(plugin):
    plugin.node_dir.mkdir()
    (plugin.node_dir / "clock.sock").touch()
    theirs = {
        "sample": "process-tree",
        "gpuctxsw": "it's $HOME",
        "t": "nvtx",
        "capture-range": "cudaProfilerApi",
    }
    text = wrapped(plugin, theirs, "printenv RLPROF_SESSION_OPTIONS #").py_executable
    told = subprocess.run(["bash", "-c", f"exec {text}"], timeout=30, capture_output=True, check=True).stdout
    assert json.loads(told) == {"sample": "process-tree", "gpuctxsw": "it's $HOME"}
