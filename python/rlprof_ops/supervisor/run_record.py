"""run.json: what a job was asked to do, where it ran, and how it ended. Rewritten whole at each turn of
the job.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof_ops.host import atomic, foreign
from rlprof_ops.host.background import BackgroundWriter
from rlprof_ops.job import run_json
from rlprof_ops.job.end_cause import EndCause
from rlprof_ops.redact import redact_text

if TYPE_CHECKING:
    from rlprof_ops.job.knobs import Settings
    from rlprof_ops.job.node_context import NodeContext
    from rlprof_ops.request import ProfileRequest
    from rlprof_ops.supervisor.node.node_state import NodeState


@dataclass
class RunRecord:
    """The record while the job runs; `save` is called by every method that changes it."""

    place: NodeContext
    data: dict[str, Any]
    writer: BackgroundWriter
    own: Path
    detail: str = ""

    @classmethod
    def of(
        cls,
        place: NodeContext,
        settings: Settings,
        request: ProfileRequest,
        state: NodeState,
        writer: BackgroundWriter,
    ) -> RunRecord:
        """The record as a supervisor before has left it on the node, else that of a job that begins."""
        begun = run_json.beginning(
            place.job, place.nodes, place.node, settings["COMMAND"], request, state.notes
        )
        data: dict[str, Any] = {**begun}
        data |= {"framework": settings["RLPROF_TRAINER"] or None, "started_ns": state.started_ns}
        data |= foreign.read_object(state.run_json)
        return cls(place, data, writer, state.run_json)

    @property
    def lost_nodes(self) -> frozenset[str]:
        return frozenset(self.data["end"].get("lost_nodes", ()))

    def taken_over(self, node: str, how: str) -> None:
        """A node's supervisor is another one from now on; `how` the one before ended."""
        self.data.setdefault("takeovers", []).append({"node": node, "t_ns": time.time_ns(), "how": how})
        self.save()

    def lost(self, *nodes: str) -> None:
        """From now on these nodes are lost, and no others."""
        self.data["end"]["lost_nodes"] = sorted(nodes)
        self.save()

    def put(self, **values: object) -> None:
        """`request`: what the job is asked for since its trainer has told its own configuration, with
        `request_by`; `waiting`: what the driver waits for and nobody has, "" when that is over.
        """
        self.data |= values
        self.save()

    def driver_started(self) -> None:
        self.data["driver"]["started_ns"] = time.time_ns()
        self.save()

    def driver_ended(self, code: int) -> None:
        self.data["driver"] |= run_json.driver_end(code)
        self.save()

    def ending(self, cause: EndCause) -> None:
        self.data["end"] |= {"cause": str(cause), "detail": redact_text(self.detail)}
        self.save()

    def ended(self, phases_s: dict[str, float], drain_s: float) -> None:
        self.data["end"] |= {
            "phases_s": phases_s,
            "drain_s": round(drain_s, 3),
            "lost_nodes": sorted(self.lost_nodes),
        }
        self.data["ended_ns"] = time.time_ns()
        self.save()

    def save(self) -> None:
        """Onto the node at once, for a supervisor that follows; into the run folder by the writer's thread,
        which a storage that hangs may keep. The node folder keeps the record until the run folder has it,
        see salvage.py.
        """
        path, kept = self.place.run.run_json, self.place.folder.keep / "run.json"
        data = (json.dumps(self.data, indent=1) + "\n").encode()
        with contextlib.suppress(OSError):
            atomic.write(self.own, data)
            kept.parent.mkdir(exist_ok=True)
            atomic.write(kept, data)

        def then(error: OSError | None) -> None:
            with contextlib.suppress(OSError):
                if error is None and kept.read_bytes() == data:  # not a newer one, which is still on its way
                    kept.unlink()

        self.writer.put(path, data, then)
