"""A node's CPU, memory, network and disk, from /proc: what each moved since the look before."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass

_VIRTUAL = re.compile(r"(lo|veth|docker|br-|virbr|bond|dummy|ifb|tun|tap)")
_DISK = re.compile(r"(sd[a-z]+|vd[a-z]+|xvd[a-z]+|nvme\d+n\d+|mmcblk\d+)$")
_SECTOR_KIB = 0.5
STORE = "/dev/shm"


@dataclass(frozen=True)
class HostSample:
    """One look. Rates are since the one before; the first look has none."""

    cpu_permille: int
    memory_mib: int
    memory_total_mib: int
    received_kib_s: int
    sent_kib_s: int
    read_kib_s: int
    written_kib_s: int
    store_mib: int


class HostSamples:
    """Keeps what the last look has read. A file that is not there counts as nothing moved."""

    def __init__(self, root: str = "/proc") -> None:
        self._root = root
        self._then = 0.0
        self._cpu: tuple[int, int] | None = None
        self._moved: tuple[float, ...] | None = None

    def look(self) -> HostSample:
        now = time.monotonic()
        seconds = max(0.1, now - self._then)
        self._then = now
        busy = self._busy_permille()
        moved = (*self._network(), *self._disks())
        before, self._moved = self._moved or moved, moved
        received, sent, read, written = (
            int(max(0.0, after - then) / seconds) for then, after in zip(before, moved, strict=True)
        )
        total, used = self._memory()
        return HostSample(busy, used, total, received, sent, read, written, _store_mib())

    def _read(self, name: str) -> str:
        try:
            with open(f"{self._root}/{name}", encoding="ascii", errors="replace") as file:
                return file.read(1 << 18)
        except OSError:
            return ""

    def _busy_permille(self) -> int:
        values = [int(word) for word in self._read("stat").partition("\n")[0].split()[1:9] if word.isdigit()]
        if len(values) < 5:
            return 0
        now = (sum(values), values[3] + values[4])
        before, self._cpu = self._cpu, now
        if before is None or now[0] <= before[0]:
            return 0
        return round(1000 * (1 - (now[1] - before[1]) / (now[0] - before[0])))

    def _memory(self) -> tuple[int, int]:
        """All there is, and what is neither free nor easily freed; MiB."""
        found: dict[str, int] = {}
        for line in self._read("meminfo").splitlines():
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                found[name] = int(rest.split()[0])
        total = found.get("MemTotal", 0)
        return total >> 10, max(0, total - found.get("MemAvailable", total)) >> 10

    def _network(self) -> tuple[float, float]:
        received = sent = 0
        for line in self._read("net/dev").splitlines()[2:]:
            name, _, rest = line.partition(":")
            words = rest.split()
            if len(words) >= 9 and not _VIRTUAL.match(name.strip()):
                received += int(words[0])
                sent += int(words[8])
        return received / 1024, sent / 1024

    def _disks(self) -> tuple[float, float]:
        read = written = 0
        for line in self._read("diskstats").splitlines():
            words = line.split()
            if len(words) >= 10 and _DISK.match(words[2]):
                read += int(words[5])
                written += int(words[9])
        return read * _SECTOR_KIB, written * _SECTOR_KIB


def _store_mib() -> int:
    """What lies in shared memory, where Ray's object store is; MiB."""
    try:
        found = os.statvfs(STORE)
    except OSError:
        return 0
    return int((found.f_blocks - found.f_bfree) * found.f_frsize) >> 20
