"""The host's side of a phase: when a process stood in a collective, so that its own work can be told from
waiting.
"""

from __future__ import annotations

import re

from rlprof_ops.analyze.columns import Trace, codes_where
from rlprof_ops.analyze.metrics.intervals import Union, merged, union
from rlprof_ops.analyze.metrics.phases import PHASE_ORDER, canonical
from rlprof_ops.analyze.readers.spill import release, rows_named

# Ranges and operators in which a process meets the others: gloo and NCCL as torch names them, NCCL's own NVTX
# domain, and ranges that a trainer calls after the collective.
_MEETS = re.compile(
    r"^(nccl|gloo|mpi|ucc|c10d)[:.]|^(nccl|mpi_|MPI_)(All|Reduce|Broad|Send|Recv|Group)|"
    r"(^|[/_:. ])(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier)([/_:. ]|$)",
    re.IGNORECASE,
)


def meets(name: str) -> bool:
    """Whether a range or operator is a collective; a phase called after one ("broadcast_weights") is none."""
    return _MEETS.search(name) is not None and canonical(name) not in PHASE_ORDER


def host_communication(trace: Trace) -> Union:
    """When the host was in a collective: CPU backends block there; of a GPU backend it is only the call."""
    chosen = codes_where(trace.names, meets)
    found = []
    for table in (trace.ranges, trace.ops):
        rows = rows_named(table, chosen)
        start = table.start[rows]
        found.append(union(start, start + table.duration[rows]))
        release(table)
    return merged(*found)
