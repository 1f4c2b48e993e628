"""The way of a request from its file to the command line of a worker, as the calls themselves show it."""

from __future__ import annotations

import logging
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import pytest
from click.testing import CliRunner
from tests.nsys_stand_in import FakeNsys
from tests.rayenv.stand_ins import Context

import rlprof_ops
from rlprof_ops.cli import cli
from rlprof_ops.request import load_request

PACKAGE = Path(rlprof_ops.__file__).parent
REQUEST = "captures:\n  - {workers: '*policy*', steps: '3:5', options: {t: nvtx}}\n"
PARSED = ("request/build.py", "read_request")


@dataclass
class Calls:
    """The functions of the package that were called, and where one room called another."""

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    entries: list[tuple[str, str]] = field(default_factory=list)  # room, file

    @property
    def rooms(self) -> list[str]:
        """The rooms in the order in which they were first entered."""
        return list(dict.fromkeys(room for room, _ in self.entries))

    def see(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not (file := _file(frame.f_code)):
            return
        self.counts[file, frame.f_code.co_name] += 1
        caller = frame.f_back
        while caller is not None and not _file(caller.f_code):
            caller = caller.f_back
        room = file.partition("/")[0]
        if caller is None or _file(caller.f_code).partition("/")[0] != room:
            self.entries.append((room, file))


def _file(code: CodeType) -> str:
    """The file of a function in a room; "" for anybody else's, and for the body of a module."""
    path = Path(code.co_filename)
    if code.co_name == "<module>" or not path.is_relative_to(PACKAGE):
        return ""
    file = path.relative_to(PACKAGE).as_posix()
    return file if "/" in file else ""


@contextmanager
def traced() -> Iterator[Calls]:
    calls, before = Calls(), sys.getprofile()
    sys.setprofile(calls.see)
    try:
        yield calls
    finally:
        sys.setprofile(before)


@pytest.fixture
def node(monkeypatch, tmp_path):
    monkeypatch.setenv("RLPROF_NODE_DIR", str(tmp_path))
    monkeypatch.setenv("RLPROF_JOB", "7")
    monkeypatch.setenv("RLPROF_NSYS", str(FakeNsys(tmp_path)))
    path = tmp_path / "profile.yaml"
    path.write_text(REQUEST)
    return path


def test_rlprof_wrap_parses_the_file_once_and_goes_through_the_rooms_in_order(node):
    words = ["wrap", "--request", str(node), "--worker", "policy_worker", "--show", "--", "python", "x.py"]
    CliRunner().invoke(
        cli, words, catch_exceptions=False
    )  # what modules do when they are imported is not seen
    with traced() as calls:
        done = CliRunner().invoke(cli, words, catch_exceptions=False)

    assert shlex.split(done.output)[-4:] == ["-t", "nvtx", "python", "x.py"]
    assert calls.counts["request/yaml_file.py", "parse_yaml"] == calls.counts[PARSED] == 1
    assert calls.rooms == ["commands", "request", "runtime", "rayenv", "job", "trainers", "backends", "host"]
    asked_again = {file for room, file in calls.entries if room == "request"}
    assert asked_again == {"request/__init__.py", "request/model.py"}, (
        "what was parsed is asked, not the file"
    )
    assert calls.entries.count(("request", "request/__init__.py")) == 1


def test_the_agent_parses_the_request_once_for_all_of_its_workers(node, monkeypatch):
    from rlprof_ops.rayenv.plugin import RlprofPlugin

    monkeypatch.setenv("RLPROF_REQUEST_JSON", load_request(str(node)).to_json() + " ")  # no other test's text
    plugin, made = RlprofPlugin(), [Context(sys.executable) for _ in range(3)]
    with traced() as calls:
        for rank, context in enumerate(made):
            asked = {"rlprof": {"worker": "policy_worker", "rank": rank}}
            plugin.modify_context([], asked, context, logging.getLogger("agent"))

    assert all(" -t nvtx " in context.py_executable for context in made)
    assert calls.counts[PARSED] == 1
    assert calls.counts["rayenv/wrap/wrap_context.py", "wrap_context"] == 3
