"""grpo.py by a user who profiles steps by torch.profiler: profiled_grpo.py FOLDER STEPS ARGUMENTS of grpo.py

STEPS is "2:4,7-9": one profiler from the begin of step 2 to that of step 4, another from the end of step 7
to that of step 9. A trace is FOLDER/own-<first>.json.
"""

import re
import sys
from pathlib import Path

import grpo
import torch
from transformers import TrainerCallback


class OwnProfiler(TrainerCallback):
    """Windows by the moment, ("begin" | "end", step), at which they start, and stop."""

    def __init__(self, folder: Path, steps: str) -> None:
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
            self._profile.stop()
            self._profile.export_chrome_trace(str(self._folder / f"own-{self._first}.json"))
        if (where, step) in self._starts:
            self._first = step
            self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
            self._profile.start()


if __name__ == "__main__":
    folder, steps = Path(sys.argv.pop(1)), sys.argv.pop(1)
    grpo.main(OwnProfiler(folder, steps))
