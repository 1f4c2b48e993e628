"""A training process of the matrix: told by `DRIVER` it uses our runtime, or works as an actor of a trainer
that is not modified, whose steps others count. It goes through steps 1 to 7, of two phases each.
"""

import contextlib
import os
import sys
import time

DRIVER, STEPS = sys.argv[1], range(1, 8)
PHASES = ("generation", "train")


def work():
    if "torch" in sys.modules:
        import torch

        torch.ones(64, 64) @ torch.ones(64, 64)
    time.sleep(0.02)


def with_our_runtime(pause=lambda step: None):
    from rlprof_ops.runtime import profiler

    prof = profiler.from_env()
    for step in STEPS:
        with prof.step(step):
            for phase in PHASES:
                with prof.range(phase):
                    work()
        pause(step)
    prof.close()


class Counts:
    """The job's clock, as its supervisor writes it of an engine that others count: half of the requests are
    done a second after the first phase of a step began, and the longest answer has 20 and 30 tokens a second
    and three after.
    """

    def __init__(self):
        from rlprof_ops.runtime.clock_file import ClockFile

        self.clock = ClockFile(os.environ["RLPROF_NODE_DIR"], write=True)

    def begin(self, step):
        self.told = step, {}, time.monotonic_ns()
        self.first_ns = time.monotonic_ns()
        self.store()

    def phase(self, name):
        self.told[1][name] = time.monotonic_ns()
        self.store()

    def look(self):
        for second, name in ((1, "50% of the requests"), (1, "token 20"), (3, "token 30")):
            if name not in self.told[1] and time.monotonic_ns() - self.first_ns >= second * 1e9:
                self.phase(name)

    def store(self, runs=True):
        from rlprof_ops.runtime.clock_file import ClockState

        step, phases, since_ns = self.told
        self.clock.store(ClockState(step, time.time_ns(), runs, 0, since_ns, dict(phases)))


def in_ticks(*lengths_s, tick_s=0.02):
    """Our runtime, two steps of phases so long; each tick is a range, called by when it began in it."""
    from rlprof_ops.runtime import profiler

    counts = Counts()
    prof = profiler.from_env()
    for step in (1, 2):
        with prof.step(step):
            counts.begin(step)
            for phase, phase_s in zip(PHASES, lengths_s, strict=True):
                with prof.range(phase):
                    began = time.monotonic()
                    while (now := time.monotonic() - began) < phase_s:
                        counts.look()
                        with prof.range(f"{step} {phase} {now:.2f}"):
                            time.sleep(tick_s)
    prof.close()


def flood():
    """Two steps of many ranges: a second, and as long as the window of the second one is open."""
    from rlprof_ops.runtime import profiler

    prof = profiler.from_env()
    for step, most_s in ((1, 1.0), (2, 60.0)):
        with prof.step(step):
            until = time.monotonic() + most_s
            while prof.any_open and time.monotonic() < until:
                for _ in range(20 if "torch" in sys.modules else 1000):
                    with prof.range("a range with a name of some length"):
                        pass
                time.sleep(0.01)
    prof.close()


def unmodified(around=lambda step: contextlib.nullcontext()):
    from rlprof_ops.runtime import follower
    from rlprof_ops.runtime.clock_file import ClockFile, ClockState
    from rlprof_ops.runtime.process import session_file

    session_file.register()
    clock = ClockFile(os.environ["RLPROF_NODE_DIR"], write=True)
    for step in STEPS:
        clock.store(ClockState(step, time.time_ns(), True, 0))
        with around(step):
            for phase in PHASES:
                with follower.task(phase):
                    work()


def unmodified_in_ticks(*lengths_s):
    """Two steps that somebody else leads; each tick is a task, called by when it began in its phase."""
    from rlprof_ops.runtime import follower

    counts = Counts()
    for step in (1, 2):
        counts.begin(step)
        with follower.task("data"):  # in which torch makes its first start
            work()
        counts.first_ns = time.monotonic_ns()
        for phase, phase_s in zip(PHASES, lengths_s, strict=True):
            counts.phase(phase)
            began = time.monotonic()
            while (now := time.monotonic() - began) < phase_s:
                counts.look()
                with follower.task(f"{step} {phase} {now:.2f}"):
                    work()
        counts.store(runs=False)


def with_a_range_of_its_own():
    import nvtx

    @contextlib.contextmanager
    def around(step):
        mine = nvtx.start_range("mine", domain="theirs") if step == 3 else None
        yield
        if mine is not None:
            nvtx.end_range(mine)

    unmodified(around)


def asked_meanwhile():
    """Our runtime; each request of the folder `asked` is made once the process runs."""
    from pathlib import Path

    from rlprof_ops.runtime.on_demand import watcher

    node_dir = Path(os.environ["RLPROF_NODE_DIR"])
    watcher.POLL_S = 0.02
    heard, begin = [], watcher.Watcher.__init__

    def noting(self, folder, on_demand, *more, **named):
        def tell(asked):
            try:
                on_demand(asked)
            finally:
                heard.append(asked.id)

        begin(self, folder, tell, *more, **named)

    watcher.Watcher.__init__ = noting

    def pause(step):
        requests = sorted((node_dir / "asked").glob("*.json"))
        if step != 2:
            return
        for path in requests:
            watcher.leave(node_dir / watcher.FOLDER, watcher.CaptureRequest.from_json(path.read_text()))
        until = time.monotonic() + 60
        while len(heard) < len(requests) and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(1)  # those of seconds are over

    with_our_runtime(pause)


if "torch" in os.environ.get("RLPROF_REQUEST_JSON", "") or os.environ.get("LOADS_TORCH"):
    import torch  # noqa: F401 - no part of a step

{
    "process": with_our_runtime,
    "in_ticks": lambda: in_ticks(5, 1),
    "in_even_ticks": lambda: in_ticks(3, 3),
    "in_short_ticks": lambda: in_ticks(0.75, 0.75),
    "in_long_ticks": lambda: in_ticks(2.5, 2.5),
    "flood": flood,
    "supervisor": unmodified,
    "unmodified_in_ticks": lambda: unmodified_in_ticks(5, 1),
    "trainer": with_a_range_of_its_own,
    "on_demand": asked_meanwhile,
}[DRIVER]()
