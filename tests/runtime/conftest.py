"""A process in which something was asked, without starting one."""

import json

import pytest

from rlprof_ops.host import log_line
from rlprof_ops.request import request_from_dict
from rlprof_ops.runtime import active_profiler, profiler
from rlprof_ops.runtime.ranges import emitters


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Ask for a capture in this process: `asked(backend="torch", steps="3:5", …)` returns the node folder."""

    def ask(**capture):
        request = request_from_dict({"captures": [{"workers": ["policy_worker"], "steps": "3:5", **capture}]})
        monkeypatch.setenv("RLPROF_REQUEST_JSON", request.to_json())
        monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path / "node"))
        monkeypatch.setenv("RLPROF_NODE", "n1")
        monkeypatch.delenv("RLPROF_NSYS_SESSION", raising=False)
        monkeypatch.setattr(log_line, "_said", set())
        return tmp_path / "node"

    return ask


@pytest.fixture
def events(tmp_path):
    """The events that processes of this node have written: `events()` or `events("closed")`."""

    def read(kind=None):
        lines = [
            line
            for path in sorted(tmp_path.glob("node/events/*.jsonl"))
            for line in path.read_text().splitlines()
        ]
        return [event for event in map(json.loads, lines) if kind in (None, event["event"])]

    return read


class Recorder:
    """Stands in for a profiler and its ranges: what was open when, in order. `fail` names the moment that
    raises.
    """

    suffix = ".nsys-rep"
    kind = "recorder"

    def __init__(self):
        self.log = []
        self.fail = None
        self.target = None

    def open(self, target):
        self._maybe_fail("open")
        self.target = target
        self.log.append("[")

    def entered(self, step):
        pass

    def close(self):
        self._maybe_fail("close")
        self.log.append("]")
        self.target.write_bytes(b"NVIDIA Tegra Profiler Report ... [END]")
        return self.target

    def start(self, name):
        self._maybe_fail("start")
        self.log.append(f"+{name}")
        return name

    def end(self, name):
        self._maybe_fail("end")
        self.log.append(f"-{name}")

    def _maybe_fail(self, moment):
        if self.fail == moment:
            raise OSError(28, "No space left on device")


@pytest.fixture
def recorder(asked, monkeypatch):
    """`recorder(steps=…, each=…)` -> (profiler, Recorder): a profiler whose nsys is recorded."""
    made = []

    def make(metrics=False, **capture):
        asked(backend="nsight", **capture)
        fake = Recorder()
        monkeypatch.setattr(active_profiler, "choose_recorder", lambda *_: (fake, ""))
        monkeypatch.setattr(emitters, "nvtx_ranges", lambda: fake)
        if metrics:
            monkeypatch.setenv("RLPROF_METRICS", "1")
        made.append(profiler.from_env(worker="policy_worker", rank=0))
        return made[-1], fake

    yield make
    for prof in made:
        prof.close()
