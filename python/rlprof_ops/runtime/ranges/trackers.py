"""A step's times for the run that the trainer's own logger has open in W&B or MLflow: they stand beside what
it logs.

RLPROF_TRACKERS=1 asks for it. No run is started, and nothing is imported that the trainer has not imported.
A tracker that fails is told of once; training goes on.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from types import ModuleType

from rlprof_ops import env_names
from rlprof_ops.runtime.process.event_log import log_once
from rlprof_ops.runtime.ranges.phase_times import phases_of

# What MLflow takes in the name of a metric, beside letters and digits.
_UNFIT = re.compile(r"[^\w./:\- ]")


def asked() -> bool:
    return os.environ.get(env_names.TRACKERS, "0") not in ("", "0")


def tell(step: int, begin_ns: int, end_ns: int, phases: Iterable[tuple[str, int, int, int]]) -> None:
    """Hand on how long a step took, and each of its phases without those inside it, in seconds."""
    figures = {"rlprof/step_s": (end_ns - begin_ns) / 1e9}
    for name, phase in phases_of(phases, begin_ns).items():
        figures[f"rlprof/phase/{_UNFIT.sub('_', name)}_s"] = phase.own_s
    for name, send in (("wandb", _to_wandb), ("mlflow", _to_mlflow)):
        tracker = sys.modules.get(name)
        if tracker is not None:
            try:
                send(tracker, step, figures)
            except Exception as error:
                log_once(f"{name} takes no step times: {type(error).__name__}: {error}", key=name)


def _to_wandb(wandb: ModuleType, step: int, figures: Mapping[str, float]) -> None:
    """In the row that the trainer logs next: W&B's own count of rows is the trainer's."""
    run = getattr(wandb, "run", None)
    if run is not None:
        run.log({**figures, "rlprof/step": step}, commit=False)


def _to_mlflow(mlflow: ModuleType, step: int, figures: Mapping[str, float]) -> None:
    """By MLflow's own thread, so that no step waits for a server."""
    active = getattr(mlflow, "active_run", None)
    if active is not None and active() is not None:
        mlflow.log_metrics(dict(figures), step=step, synchronous=False)
