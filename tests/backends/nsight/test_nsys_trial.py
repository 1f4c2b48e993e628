"""The trial of a session's options before a worker is launched with them: a stand-in for nsys, and the
real one.
"""

import asyncio
import logging
import os
import subprocess
import sys
import time

import pytest
from tests.nsys_stand_in import FakeNsys
from tests.rayenv.stand_ins import Context
from tests.waits import wait_until

from rlprof_ops.rayenv.plugin import RlprofPlugin
from rlprof_ops.request import request_from_dict

LOG = logging.getLogger("test")


@pytest.fixture
def node(monkeypatch, tmp_path):
    """`node(**capture)` makes this process the agent of a node with that request; returns the stand-in."""
    fake = FakeNsys(tmp_path)

    def set_up(**capture):
        request = request_from_dict({"captures": [{"workers": "*policy*", "steps": "3:5", **capture}]})
        for name, value in {
            "RLPROF_NSYS": fake,
            "RLPROF_NODE": "n1",
            "RLPROF_NODE_DIR": tmp_path / "node",
        }.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("RLPROF_REQUEST_JSON", request.to_json())
        return fake

    return set_up


async def set_up(plugin, rank, worker="policy_worker"):
    context, runtime_env = Context(), {"rlprof": {"worker": worker, "rank": rank}}
    await plugin.create(None, runtime_env, context, LOG)
    plugin.modify_context([], runtime_env, context, LOG)
    return context


def test_all_workers_with_the_same_options_share_one_trial(node):
    nsys = node(options={"t": "nvtx", "sampling-period": "1"}, flags=["python-backtrace"])

    async def many():
        plugin = RlprofPlugin()
        return await asyncio.gather(*(set_up(plugin, rank) for rank in range(8)), set_up(plugin, 0, "reward"))

    *wrapped, other = asyncio.run(many())

    launch, start, shutdown = nsys.calls()
    assert launch.startswith("launch --session-new=rlprof-trial-") and launch.endswith(
        " -t nvtx --python-backtrace true"
    )
    assert start.startswith("start --session-new=rlprof-trial-") and "--sampling-period=1 -o " in start
    assert shutdown.startswith("shutdown --kill=none --session=rlprof-trial-")
    assert all(" launch " in context.py_executable for context in wrapped)
    assert other.py_executable == sys.executable


@pytest.mark.parametrize("options", [{"bogus": "1"}, {"t": "nvtx", "bogus": "1"}])
def test_a_wrong_option_is_one_clear_error(node, options):
    node(options=options, on_error="fail")

    with pytest.raises(RuntimeError) as caught:
        asyncio.run(set_up(RlprofPlugin(), 2))

    assert str(caught.value).startswith(
        "rlprof: node n1, worker 'policy_worker' rank 2: nsys does not take the options '"
    )
    assert "exit code 1: unrecognised option '--bogus=1'" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"preset": "verll"},
            "unknown nsys preset 'verll': there are nemo_rl, verl, rlinf. Did you mean 'verl'?",
        ),
        ({"t": "nvtx", "trace": "cuda"}, "the nsys options 't' and 'trace' are the same one; keep one"),
        ({"capture-range": "hotkey"}, "capture-range 'hotkey': allowed are cudaProfilerApi, nvtx, none"),
    ],
)
def test_options_that_make_no_command_are_one_clear_error(node, options, said):
    node(options=options, on_error="fail")

    with pytest.raises(RuntimeError) as caught:
        asyncio.run(set_up(RlprofPlugin(), 2))

    assert str(caught.value).startswith(f"rlprof: node n1, worker 'policy_worker' rank 2: {said}")


def test_or_the_worker_starts_unprofiled_and_knows_why(node):
    node(options={"bogus": "1"}, on_error="continue")

    context = asyncio.run(set_up(RlprofPlugin(), 2))

    assert context.py_executable == sys.executable
    assert "unrecognised option '--bogus=1'" in context.env_vars["RLPROF_NOT_WRAPPED"]
    assert context.env_vars["RLPROF_WORKER"] == "policy_worker"


def test_an_nsys_that_hangs_is_an_error_in_seconds(node, monkeypatch):
    nsys = node(options={"hang": "1"}, on_error="fail")
    monkeypatch.setenv("RLPROF_CHECK_TIMEOUT_S", "1")
    begun = time.monotonic()

    with pytest.raises(RuntimeError, match="did not return within 1 s"):
        asyncio.run(set_up(RlprofPlugin(), 0))

    assert time.monotonic() - begun < 60
    wait_until(lambda: not nsys.hanging())


@pytest.mark.nsys
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"t": "nvtx"}, None),
        ({"t": "nvtx,osrt", "osrt-threshold": "5000", "sample": "none"}, None),
        ({"t": "nvtxx"}, "Illegal --trace argument 'nvtxx'"),
        ({"no-such-option": "1"}, "unrecognised option '--no-such-option=1'"),
        ({"backtrace": "sideways"}, "Illegal --backtrace"),
    ],
)
def test_real_nsys_is_asked(node, monkeypatch, options, said, tmp_path):
    node(options=options, on_error="continue")
    monkeypatch.delenv("RLPROF_NSYS")

    context = asyncio.run(set_up(RlprofPlugin(), 0))

    assert (
        said in context.env_vars["RLPROF_NOT_WRAPPED"]
        if said
        else "RLPROF_NOT_WRAPPED" not in context.env_vars
    )
    left = subprocess.run(
        ["pgrep", "-af", "rlprof-trial-" + str(os.getpid())], capture_output=True, text=True
    ).stdout
    assert left == "", "no agent of a trial lives on"
