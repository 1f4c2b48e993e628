"""Which ranks are peers: those of one stage of a pipeline. A longer stage makes none of its ranks slow."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import PurePath

from rlprof_ops.analyze.metrics.gpu_work.pipeline import UNTOLD
from rlprof_ops.analyze.run.foreign_names import stage_in_name
from rlprof_ops.analyze.run.merge import Merged, Rank, rank_of
from rlprof_ops.analyze.run.process_summary import Summary

_POINT_TO_POINT = ("send", "recv", "sendrecv", "coalesced")  # operations as `plain_op` has them
_ITS_KERNEL = re.compile(r"send_?recv", re.IGNORECASE)
_SAY_NOTHING = ("", "default_pg", "undefined")  # descriptions of process groups


@dataclass(frozen=True)
class Stages:
    """The stage of every rank whose worker is a pipeline. `unclear`: (worker, phase) in which ranks send to
    each other, and nothing tells whether they are stages. `pipeline`: the ranks of a rank's own one.
    """

    known: dict[Rank, int] = field(default_factory=dict)
    piped: frozenset[str] = frozenset()
    unclear: frozenset[tuple[str, str]] = frozenset()
    pipeline: dict[Rank, str] = field(default_factory=dict)

    def of(self, rank: Rank, phase: str) -> int | None:
        """0 where there is no pipeline; None where it cannot be told who the rank's peers are."""
        if rank.role in self.piped:
            return self.known.get(rank)
        return None if (rank.role, phase) in self.unclear else 0

    def of_its_pipeline(self, rank: Rank) -> set[Rank]:
        """The rank and the other stages of its pipeline, which wait for each microbatch of each other."""
        mine = (rank.role, self.pipeline.get(rank))
        found = {r for r, members in self.pipeline.items() if (r.role, members) == mine}
        one_each = len({self.known[r] for r in found}) == len(found)  # else pipelines of several worlds
        return found | {rank} if one_each else {rank}


def find_stages(merged: Merged) -> Stages:
    """By the pipeline's process groups, else by the names of the files."""
    told: dict[Rank, int] = {}
    pipeline: dict[Rank, str] = {}
    named: dict[Rank, int] = {}
    piped: set[str] = set()
    unclear: set[tuple[str, str]] = set()
    for summary in merged.summaries:
        rank = rank_of(summary)
        for part in summary.pipeline:
            if part.stages > 1:
                piped.add(rank.role)
            if part.stage != UNTOLD:
                told[rank], pipeline[rank] = part.stage, part.members
        stage = stage_in_name(PurePath(summary.report.path).name)
        if stage is not None:
            named[rank] = stage
        unclear |= {(rank.role, phase) for phase in _sends_to_somebody(summary)}
    places: dict[str, set[int]] = defaultdict(set)
    for rank, stage in named.items():
        places[rank.role].add(stage)
    piped |= {worker for worker, stages in places.items() if len(stages) > 1}
    return Stages(named | told, frozenset(piped), frozenset(unclear), pipeline)


def _sends_to_somebody(summary: Summary) -> set[str]:
    """The phases with transfers between two ranks, where some of them belong to a group that says nothing."""
    if not any(c.op in _POINT_TO_POINT and c.group in _SAY_NOTHING for c in summary.collectives):
        return set()
    return {kernel.phase for kernel in summary.kernels if _ITS_KERNEL.search(kernel.name)}
