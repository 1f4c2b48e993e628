"""The critical path, its slack and what changes would bring, as data and as lines for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlprof_ops.analyze.causes.critical import Chain, Link, PhaseSlack
from rlprof_ops.analyze.causes.what_if import WhatIf
from rlprof_ops.analyze.output.text import duration, percent
from rlprof_ops.analyze.report_model import CriticalPath, LinkRow, WhatIfRow
from rlprof_ops.analyze.run.merge import Rank

MAX_STRETCHES = 400  # drawn a step
MAX_RANKS_OF_LINK = 8
MAX_LINES = 6


def path_json(
    chains: Sequence[Chain],
    slack: Sequence[PhaseSlack],
    index: Mapping[Rank, int],
    t0: int,
    untold: str = "",
) -> CriticalPath:
    return {
        "untold": untold,
        "steps": [
            {
                "step": chain.step,
                "start_ns": chain.start - t0,
                "length_ns": chain.length_ns,
                "rest_ns": chain.rest_ns,
                "links": [_link(link, index, t0) for link in chain.links],
                "stretches": [
                    [index[rank], start - t0, end - start]
                    for rank, start, end in sorted(
                        sorted(chain.stretches, key=lambda s: s[1] - s[2])[:MAX_STRETCHES],
                        key=lambda s: s[1],
                    )
                ],
            }
            for chain in chains
        ],
        "slack": [
            {
                "worker": s.worker,
                "phase": s.phase,
                "steps": s.steps,
                "on_path": s.on_path,
                "tightest_ns": s.tightest_ns,
                "by_rank": [[index[rank], ns] for rank, ns in s.by_rank],
            }
            for s in slack
        ],
    }


def _link(link: Link, index: Mapping[Rank, int], t0: int) -> LinkRow:
    return {
        "worker": link.worker,
        "rank": index[link.rank],
        "phase": link.phase,
        "start_ns": link.start - t0,
        "duration_ns": link.duration_ns,
        "after_ns": link.after_ns,
        "by_rank": [[index[rank], ns] for rank, ns in link.by_rank[:MAX_RANKS_OF_LINK]],
    }


def what_if_json(found: Sequence[WhatIf], index: Mapping[Rank, int]) -> list[WhatIfRow]:
    return [
        {
            "kind": w.kind,
            "change": w.change,
            "worker": w.worker,
            "phase": w.phase,
            "rank": None if w.rank is None else index[w.rank],
            "saves_ns": w.saves_ns,
            "share": round(w.share, 5),
        }
        for w in found
    ]


def path_lines(path: CriticalPath, names: Sequence[str]) -> list[str]:
    """The chain of the step that is nearest to the median length, and the slack of what is on no path."""
    if not path["steps"]:
        return [path["untold"]] if path.get("untold") else []
    by_length = sorted(path["steps"], key=lambda chain: chain["length_ns"])
    usual = by_length[len(by_length) // 2]
    links = " → ".join(
        f"{link['phase']} of {names[link['rank']]} {duration(link['duration_ns'])}" for link in usual["links"]
    )
    lines = [
        f"Step {usual['step']} took {duration(usual['length_ns'])} because of: {links};"
        f" between them {duration(usual['rest_ns'])}."
    ]
    spare = [
        f"{s['phase']} of {s['worker']} {duration(s['tightest_ns'])}"
        for s in sorted(path["slack"], key=lambda s: -s["tightest_ns"])
        if not s["on_path"]
    ]
    if spare:
        lines.append(f"Could have taken longer, for nobody waited: {', '.join(spare[:MAX_LINES])}.")
    return lines


def what_if_lines(found: Sequence[WhatIfRow]) -> list[str]:
    return [
        f"{w['change']}: step {percent(w['share'])} shorter ({duration(w['saves_ns'])})"
        for w in found[:MAX_LINES]
    ]
