"""One node's recorder: looks once a second, keeps the rows, and makes the news for the head."""

from __future__ import annotations

import time
from pathlib import Path

from rlprof_ops.recorder import rows
from rlprof_ops.recorder.news import MOST_ARRIVALS, MOST_STEPS, News
from rlprof_ops.recorder.record_file import FOLDER, RecordFile, read_folder
from rlprof_ops.recorder.samples.arrival_files import ArrivalFiles
from rlprof_ops.recorder.samples.engines import Engines, EngineSample
from rlprof_ops.recorder.samples.gpu import GpuSample, GpuSamples, throttle_words
from rlprof_ops.recorder.samples.host_samples import HostSample, HostSamples
from rlprof_ops.recorder.samples.rank_states import RankStates
from rlprof_ops.recorder.samples.step_marks import StepMarks, ToldStep, WindowMark

SEAL_S = 60.0
# From this size on the record gets every second sample alone, from each doubling on every second of those.
THIN_BYTES = 16 << 20


class NodeRecorder:
    """Everything of one node. Raises OSError when the node folder takes no record."""

    def __init__(self, node_dir: Path, node: str, thin_bytes: int = THIN_BYTES) -> None:
        self._node = node
        self._kept = _kept_steps(node_dir / FOLDER)
        self._in_block: dict[str, int] = {}  # the last step of each process in this block
        self._file = RecordFile(node_dir / FOLDER)
        self._marks, self._ranks = StepMarks(node_dir), RankStates(node_dir, node)
        self._arrivals = ArrivalFiles(node_dir)
        self._host, self._gpus = HostSamples(), GpuSamples()
        self._engines = Engines(node_dir=node_dir)
        self._names = rows.Names.new()
        self._sealed = time.monotonic()
        self._looks = 0
        self._then = time.monotonic()
        self._thin_bytes = thin_bytes
        self._steps: list[ToldStep] = []
        self._windows: list[WindowMark] = []
        self._throttled: dict[int, tuple[float, int]] = {}
        self._engine_rows: dict[str, tuple[int, float, float]] = {}  # url -> the last row's time, and tokens
        self._latest: tuple[HostSample | None, list[GpuSample], list[EngineSample]] = (None, [], [])

    def look(self) -> None:
        """One second's look, kept on the node's disk at once."""
        engines = self._engines.look()  # before the row's time is: one that hangs answers late
        t_ns, now = time.time_ns(), time.monotonic()
        seconds, self._then = now - self._then, now
        host, gpus = self._host.look(), self._gpus.look()
        steps, windows = self._marks.look()
        self._latest = (host, gpus, engines)
        self._steps += steps
        self._windows += windows
        for gpu in gpus:
            before, bits = self._throttled.get(gpu.gpu, (0.0, 0))
            if throttle_words(gpu.throttle):
                self._throttled[gpu.gpu] = (before + min(seconds, 5.0), bits | gpu.throttle)
        self._keep(t_ns, host, gpus, engines, steps)
        self._looks += 1

    def _keep(
        self,
        t_ns: int,
        host: HostSample,
        gpus: list[GpuSample],
        engines: list[EngineSample],
        steps: list[ToldStep],
    ) -> None:
        if self._file.full or time.monotonic() - self._sealed >= SEAL_S:
            self.seal()
        self._begin(t_ns)
        t = (t_ns - self._file.base_ns) // rows.TENTH_NS
        found: list[tuple[int, bytes]] = []
        if self._looks % self.every() == 0:
            found += [
                (
                    rows.GPU,
                    rows.pack(
                        rows.GPU,
                        t,
                        gpu.gpu,
                        gpu.busy_percent,
                        gpu.temperature_c,
                        0,
                        gpu.power_w,
                        gpu.sm_mhz,
                        gpu.memory_mib,
                        gpu.throttle,
                        gpu.pcie_mib_s,
                        gpu.nvlink_mib_s,
                    ),
                )
                for gpu in gpus
            ]
            moved = (host.received_kib_s, host.sent_kib_s, host.read_kib_s, host.written_kib_s)
            found.append(
                (
                    rows.HOST,
                    rows.pack(rows.HOST, t, host.cpu_permille, host.memory_mib, *moved, host.store_mib),
                )
            )
            for engine in (each for each in engines if not each.silent):
                number = self._names.number(engine.url)
                values = (engine.running, engine.waiting, engine.cache_permille, engine.preemptions)
                row = rows.pack(rows.ENGINE, t, number, *values, *self._rates(engine, t))
                found.append((rows.ENGINE, row))
        for step in steps:
            if self._counts_anew(step):
                self._add(found)
                self.seal()
                self._begin(t_ns)
                found = []
            found += self._step_rows(step)
            self._in_block[_name(step)] = step.step
        self._add(found)

    def _begin(self, t_ns: int) -> None:
        """The first rows of a block come now, unless it has some."""
        if not self._file.base_ns:
            self._file.begin(t_ns)
            self._names, self._in_block = rows.Names.new(), {}

    def _add(self, found: list[tuple[int, bytes]]) -> None:
        fresh, self._names.fresh = self._names.fresh, []
        self._file.add([(rows.NAME, row) for row in fresh] + found)

    def _counts_anew(self, step: ToldStep) -> bool:
        """Whether a second trainer of the process counts from 1 again. It has a block of its own, for a phase
        names its step by process and number.
        """
        return step.step <= self._in_block.get(_name(step), 0)

    def _rates(self, engine: EngineSample, t: int) -> tuple[float, float]:
        """Tokens and prompt tokens a second since the row before, by the times of the two rows: a reader gets
        the counts back, however late or rare the looks are. A counter that fell was begun anew.
        """
        at_ns = self._file.base_ns + t * rows.TENTH_NS
        before_ns, made, prompted = self._engine_rows.get(engine.url, (at_ns, 0.0, 0.0))
        if before_ns == at_ns and engine.url in self._engine_rows:
            return 0.0, 0.0
        self._engine_rows[engine.url] = (at_ns, engine.made, engine.prompted)
        seconds = (at_ns - before_ns) / 1e9
        if seconds <= 0:  # the first row, or the clock was set back
            return 0.0, 0.0
        grown = ((engine.made, made), (engine.prompted, prompted))
        tokens, prompts = ((now - then if now >= then else now) / seconds for now, then in grown)
        return tokens, prompts

    def _step_rows(self, step: ToldStep) -> list[tuple[int, bytes]]:
        name = _name(step)
        if step.begin_ns <= self._kept.get(name, 0):  # by a recorder that was killed
            return []
        who = self._names.number(name)
        found = [(rows.STEP, rows.pack(rows.STEP, who, step.step, step.begin_ns, step.seconds))]
        for name, phase in step.phases.items():
            times = (phase.begin_s, phase.seconds, phase.own_s)
            number = self._names.number(name)
            found.append((rows.PHASE, rows.pack(rows.PHASE, who, step.step, number, phase.count, *times)))
        return found

    def every(self) -> int:
        """Every how many looks the samples are kept: more rarely the larger the record is."""
        size, every = self._file.size_bytes, 1
        while size >= self._thin_bytes and every < 1024:
            size, every = size // 2, every * 2
        return every

    def seal(self) -> None:
        """Make a block of what is there, for the sync to bring home."""
        self._file.seal()
        self._file.begin(0)
        self._sealed = time.monotonic()

    def news(self) -> News:
        """What the head has not been told."""
        steps, self._steps = self._steps[:MOST_STEPS], self._steps[MOST_STEPS:]
        windows, self._windows = self._windows, []
        throttled, self._throttled = self._throttled, {}
        host, gpus, engines = self._latest
        now, t_ns = tuple(self._marks.now()), time.time_ns()
        return News(
            self._node,
            t_ns,
            host,
            tuple(gpus),
            tuple(engines),
            now,
            tuple(steps),
            tuple(windows),
            throttled,
            tuple(self._ranks.look(t_ns, now)),
            self._marks.by,
            tuple(self._marks.not_seen),
            self._arrivals.look(MOST_ARRIVALS),
        )


def _name(step: ToldStep) -> str:
    return rows.process_name(step.worker, step.rank, step.pid, step.leads)


def _kept_steps(folder: Path) -> dict[str, int]:
    """When the last step of each process began that the record holds already (Unix ns)."""
    found: dict[str, int] = {}
    layout = rows.LAYOUT[rows.STEP][0]
    for block in read_folder(folder):
        names = block.names()
        for who, _, begin_ns, _ in layout.iter_unpack(block.sections.get(rows.STEP, b"")):
            name = names.get(who, "")
            found[name] = max(found.get(name, 0), begin_ns)
    return found
