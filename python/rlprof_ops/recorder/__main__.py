"""`python -m rlprof_ops.recorder`: the recorder of one node, started and ended by the node's supervisor.

News go to standard output, a JSON line each; the head's takes those of the other nodes on standard input.
SIGTERM, or the parent's death, means: keep what is there, and exit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlprof_ops import env_names
from rlprof_ops.errors import EXIT_USAGE
from rlprof_ops.job.folders import pinned_run
from rlprof_ops.recorder import news as news_lines
from rlprof_ops.recorder.head_recorder import HeadRecorder
from rlprof_ops.recorder.node_recorder import NodeRecorder
from rlprof_ops.request import ProfileRequest, RequestError, request_from_json

LOOK_S = 1.0
_NODES_A_SECOND = 64  # news that the head takes; with more nodes each tells more rarely
_LAST_WRITE_S = 3.0
_MOST_WAITING = 4 << 20
_NICE = 15


def news_every_s(nodes: int) -> float:
    return max(1.0, nodes / _NODES_A_SECOND)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="rlprof_ops.recorder", description=__doc__)
    parser.add_argument("--node-dir", required=True, type=Path)
    parser.add_argument("--node", required=True)
    parser.add_argument("--nodes", required=True, help="all nodes of the job, separated by spaces")
    parser.add_argument("--run-dir", type=Path, help="on the head alone: where the summary goes")
    parser.add_argument("--job", default="")
    return parser.parse_args(argv)


class _Pipes:
    """Lines in and out that keep nobody waiting: what the supervisor does not take is dropped."""

    def __init__(self) -> None:
        self._in, self._out = 0, 1
        self._rest = b""
        self._waiting = b""
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)

    def tell(self, text: str) -> None:
        if len(self._waiting) < _MOST_WAITING:
            self._waiting += text.encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError, OSError):
            while self._waiting:
                self._waiting = self._waiting[os.write(self._out, self._waiting) :]

    def lines(self, timeout_s: float) -> list[bytes]:
        """Whole lines that come within `timeout_s`; none once the other side has closed."""
        if self._in < 0:
            time.sleep(max(0.0, timeout_s))
            return []
        if not select.select([self._in], [], [], max(0.0, timeout_s))[0]:
            return []
        try:
            data = os.read(self._in, 1 << 20)
        except OSError:
            return []
        if not data:
            self._in = -1
        *found, self._rest = (self._rest + data).split(b"\n")
        return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop; returns the exit code."""
    arguments = _arguments(argv)
    stop = _Stop()
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    pipes = _Pipes()

    def tell(what: dict[str, Any]) -> None:
        pipes.tell(json.dumps(what))

    try:
        recorder = NodeRecorder(arguments.node_dir, arguments.node)
    except OSError as error:
        print(f"recorder: {error}", file=sys.stderr)
        return EXIT_USAGE
    nodes = arguments.nodes.split()
    head = None
    if arguments.run_dir is not None:
        run = pinned_run(arguments.run_dir, arguments.node_dir)
        head = HeadRecorder(run, arguments.job, nodes, _request(), tell)
    _run(recorder, head, pipes, stop, news_every_s(len(nodes)))
    recorder.look()
    recorder.seal()
    if head is not None:
        head.take(recorder.news())
        head.close(_LAST_WRITE_S)
    else:
        pipes.tell(json.dumps({"news": recorder.news().to_json()}))
    return 0


def _run(
    recorder: NodeRecorder, head: HeadRecorder | None, pipes: _Pipes, stop: _Stop, every_s: float
) -> None:
    next_look = next_news = time.monotonic()
    while not stop.asked:
        now = time.monotonic()
        if now >= next_look:
            recorder.look()
            next_look = max(next_look + LOOK_S, now)
            if now >= next_news:
                next_news = max(next_news + every_s, now)
                news = recorder.news()
                if head is not None:
                    head.take(news)
                else:
                    pipes.tell(json.dumps({"news": news.to_json()}))
            if head is not None:
                head.look()
        pipes.flush()
        for line in pipes.lines(next_look - time.monotonic()):
            if head is not None:
                _hear(head, line)


def _hear(head: HeadRecorder, line: bytes) -> None:
    """Take another node's news, or what the job waits for, by the supervisor."""
    told, unmet = news_lines.read(line), news_lines.unmet(line)
    if told is not None:
        head.take(told)
    elif unmet is not None:
        head.view.take_unmet(unmet)


class _Stop:
    """Whether the end was asked for: by a signal, or by the death of whoever started us."""

    def __init__(self) -> None:
        self._parent = os.getppid()
        self._told = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._tell)
        # Slurm gives the notice of a time limit to every process of a step.
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def _tell(self, number: int, frame: object) -> None:
        self._told = True

    @property
    def asked(self) -> bool:
        return self._told or os.getppid() != self._parent


def _request() -> ProfileRequest:
    text = os.environ.get(env_names.REQUEST_JSON)
    try:
        return request_from_json(text) if text else ProfileRequest()
    except RequestError:
        return ProfileRequest()


if __name__ == "__main__":
    sys.exit(main())
