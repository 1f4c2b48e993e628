"""What `rlprof wrap` says while it takes secrets out of reports, and how a signal ends that."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, TracebackType

from rlprof_ops.words import counted, size

_ENDS = (signal.SIGINT, signal.SIGTERM)
_FIRST_S, _NEXT_S = 2.0, 30.0


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """In the block the first SIGINT or SIGTERM raises KeyboardInterrupt with its name, and later ones do
    nothing. Those that came before were for the program.
    """
    while signal.sigtimedwait(_ENDS, 0) is not None:
        pass
    before = {number: signal.signal(number, _raise) for number in _ENDS}
    blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(number: int, frame: FrameType | None) -> None:
    for each in _ENDS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt(f"ended by {signal.Signals(number).name}")


class Progress:
    """Says after a while what is done with files of so many bytes, and how much of it."""

    def __init__(self, sizes: Mapping[str, int], say: Callable[[str], None]) -> None:
        self._sizes, self._say = sizes, say
        self._done, self._over = 0, threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def done(self, path: str) -> None:
        """A file is finished."""
        self._done += self._sizes[path]

    def _tell(self) -> None:
        wait = _FIRST_S
        while not self._over.wait(wait):
            wait = _NEXT_S
            self._say(
                f"takes secrets of the environment out of {counted(len(self._sizes), 'report')},"
                f" {size(self._done)} of {size(sum(self._sizes.values()))} so far; SIGINT (Ctrl-C) or SIGTERM"
                " ends that, and what is left is then for its owner alone"
            )
