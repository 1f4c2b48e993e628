"""pytest with several workers (`-n 3`, as `make test` does): how tests are dealt out, a line for each that
ends, and what the workers know of missing parts. Without `-n` nothing of it is there.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests import needs, tiers
from tests.workers import shares


def register(config: pytest.Config) -> None:
    """Called by tests/conftest.py; pytest-xdist may be missing where nobody asks for workers."""
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Worker(config), "rlprof-worker")
    elif config.getoption("numprocesses", None):
        config.pluginmanager.register(Controller(config), "rlprof-controller")


class Worker:
    """In each worker."""

    def __init__(self, config: Any) -> None:
        self._input: dict[str, Any] = config.workerinput
        self._output: dict[str, Any] = config.workeroutput

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """What others wait for comes first; else the order stays."""
        items.sort(key=shares.rank)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Before xdist's own, with which the controller begins to deal out."""
        path = Path(self._input["rlprof_shares"])
        own = path.with_name(self._input["workerid"])
        own.write_text(json.dumps({item.nodeid: shares.share(item) for item in session.items}))
        os.replace(own, path)

    def pytest_sessionfinish(self) -> None:
        self._output["rlprof_skipped"] = dict(needs.skipped)
        self._output["rlprof_left"] = dict(tiers.left)


class Controller:
    """In the process that a person started."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._folder = tempfile.TemporaryDirectory(prefix="rlprof-shares-")
        self._path = Path(self._folder.name) / "shares.json"
        self._session: pytest.Session | None = None
        self._seconds: Counter[str] = Counter()
        self._outcome: dict[str, str] = {}
        self._ended = 0
        self._lines = config.get_verbosity() == 0

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    def pytest_unconfigure(self) -> None:
        self._folder.cleanup()

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["rlprof_shares"] = str(self._path)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        from tests.workers.scheduling import Scheduling

        config.option.loadscopereorder = False  # the machine's share is first as it is
        return Scheduling(config, log, self._path)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker that died says nothing; the test with which it died is told as failed."""
        output = getattr(node, "workeroutput", {})
        needs.skipped.update(output.get("rlprof_skipped", {}))
        tiers.left |= output.get("rlprof_left", {})  # each worker has collected all of them

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> Any:
        category, letter, word = yield
        return category, "" if self._lines else letter, word

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        if report.outcome != "passed":
            self._outcome[report.nodeid] = report.outcome
        if self._lines and report.when not in ("setup", "call"):
            self._tell(report)

    def _tell(self, report: pytest.TestReport) -> None:
        self._ended += 1
        of = max(self._ended, self._session.testscollected if self._session else 0)
        worker = report.node.gateway.id  # type: ignore[attr-defined]
        outcome = self._outcome.pop(report.nodeid, "passed")
        seconds = self._seconds.pop(report.nodeid)
        self._config.pluginmanager.get_plugin("terminalreporter").write_line(
            f"[{100 * self._ended // of:3}%] {worker} {outcome} {seconds:6.1f} s  {report.nodeid}",
            red=outcome == "failed",
        )
