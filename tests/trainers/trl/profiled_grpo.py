"""grpo.py by a user who profiles steps: profiled_grpo.py BY FOLDER STEPS ARGUMENTS of grpo.py

BY is `torch`, a torch.profiler of the script's own, or `accelerate`, which opens it by
`accelerator.profile()`. STEPS is "2:4,7-9": one profiler from the begin of step 2 to that of step 4, another
from the end of step 7 to that of step 9. A trace is FOLDER/own-<first>/profile_0.json.
"""

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import grpo
import torch
from accelerate import Accelerator, ProfileKwargs
from transformers import TrainerCallback


@contextlib.contextmanager
def by_torch(folder: Path) -> Iterator[None]:
    folder.mkdir()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        yield
    profile.export_chrome_trace(str(folder / "profile_0.json"))


def by_accelerate(folder: Path) -> contextlib.AbstractContextManager[object]:
    wanted = ProfileKwargs(activities=["cpu"], output_trace_dir=str(folder))
    return Accelerator(cpu=True).profile(wanted)


class OwnProfiler(TrainerCallback):
    """Windows by the moment, ("begin" | "end", step), at which they start, and stop."""

    def __init__(self, by: str, folder: Path, steps: str) -> None:
        self._profile = {"torch": by_torch, "accelerate": by_accelerate}[by]
        self._folder = folder
        self._starts, self._stops = set(), set()
        for first, sign, last in re.findall(r"(\d+)([:-])(\d+)", steps):
            where = "begin" if sign == ":" else "end"
            self._starts.add((where, int(first)))
            self._stops.add((where, int(last)))

    def on_step_begin(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        self._at("begin", state.global_step + 1)

    def on_step_end(self, args, state, control, **_):  # type: ignore[no-untyped-def]
        self._at("end", state.global_step)

    def _at(self, where: str, step: int) -> None:
        if (where, step) in self._stops:
            self._open.__exit__(None, None, None)
        if (where, step) in self._starts:
            self._open = self._profile(self._folder / f"own-{step}")
            self._open.__enter__()


if __name__ == "__main__":
    by, folder, steps = sys.argv.pop(1), Path(sys.argv.pop(1)), sys.argv.pop(1)
    grpo.main(OwnProfiler(by, folder, steps))
