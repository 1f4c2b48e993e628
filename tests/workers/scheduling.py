"""How pytest-xdist's controller deals out the shares. Only imported where it deals: xdist may be missing."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling


class Scheduling(LoadScopeScheduling):
    """A worker takes a share as a whole, and the next one when it is nearly through.

    Args:
        path: where the workers write which share each test is of, before they say what they collected.
    """

    def __init__(self, config: pytest.Config, log: Any, path: Path) -> None:
        super().__init__(config, log)
        self._path = path

    @functools.cached_property
    def _shares(self) -> dict[str, str]:
        shares: dict[str, str] = json.loads(self._path.read_text())
        return shares

    def _split_scope(self, nodeid: str) -> str:
        return self._shares[nodeid]

    def remove_node(self, node: Any) -> str | None:
        """The test with which a worker died, or none. It is not run again, as xdist's own would do for ever;
        what the worker had left is, before all else.
        """
        workload = self.assigned_work.pop(node)
        left = {
            scope: {nodeid: False for nodeid, done in tests.items() if not done}
            for scope, tests in workload.items()
        }
        died_with = next((nodeid for tests in left.values() for nodeid in tests), None)
        if died_with is None:
            return None
        for scope, tests in reversed(left.items()):
            tests.pop(died_with, None)
            if tests:
                self.workqueue[scope] = tests
                self.workqueue.move_to_end(scope, last=False)
        for other in self.assigned_work:
            self._reschedule(other)
        return died_with
