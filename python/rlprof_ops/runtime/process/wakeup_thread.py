"""SIGTERM while the main thread waits in C code: a thread hears it by what Python writes down at once."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
from collections.abc import Callable

from rlprof_ops.host.threads.own_thread import OwnThread

_INT = struct.Struct("i")
_CREDENTIALS_BYTES = 3 * _INT.size  # pid, uid, gid of the writer: unix(7)


class WakeupThread:
    """Calls `heard` in a thread of its own when this process gets SIGTERM, from its making until `stop`.

    Python writes each signal that has a handler of Python's to the wakeup descriptor, before anything else.
    That of somebody else (asyncio, trio) is left as it is, and nothing is heard. A forked child writes to
    its parent's: the kernel says who wrote.
    """

    def __init__(self, heard: Callable[[], None]) -> None:
        """Of the main thread. Raises OSError, RuntimeError."""
        self._heard = heard
        self._pid = os.getpid()
        self._ours, self._written = socket.socketpair(socket.AF_UNIX)
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._written.setblocking(False)
        before = _exchange(self._written.fileno())
        if before != -1 and self._gives_back(before):
            return
        try:
            OwnThread(self._listen).start()
        except RuntimeError:
            self.stop()
            raise

    def stop(self) -> None:
        """Hear nothing any more. Of the main thread, also of a forked child's."""
        if self._written.fileno() == -1:
            return
        current = _exchange(-1)
        if current not in (-1, self._written.fileno()):  # somebody's, who may put ours back (trio)
            with contextlib.suppress(OSError, ValueError):
                _exchange(current)
            return
        if os.getpid() == self._pid:  # a child has it in common with its parent
            with contextlib.suppress(OSError):
                self._ours.shutdown(socket.SHUT_RDWR)
        self._written.close()

    def _gives_back(self, descriptor: int) -> bool:
        """Let the program have the one that was there; not where it has been closed."""
        try:
            _exchange(descriptor)
        except (OSError, ValueError):
            return False
        self._ours.setblocking(False)
        with contextlib.suppress(OSError):
            os.write(descriptor, self._ours.recv(1 << 10))  # what came meanwhile
        self._ours.close()
        self._written.close()
        return True

    def _listen(self) -> None:
        with self._ours as ours, contextlib.suppress(OSError):
            while True:
                numbers, writer, *_ = ours.recvmsg(1 << 10, socket.CMSG_SPACE(_CREDENTIALS_BYTES))
                if not numbers:
                    return
                pids = [_INT.unpack_from(data)[0] for _, _, data in writer if len(data) >= _INT.size]
                if signal.SIGTERM in numbers and os.getpid() in pids:
                    self._heard()


def _exchange(descriptor: int) -> int:
    """Make it the wakeup descriptor; which one was before."""
    return signal.set_wakeup_fd(descriptor, warn_on_full_buffer=False)
