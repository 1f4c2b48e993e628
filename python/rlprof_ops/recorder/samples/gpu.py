"""A node's GPUs by NVML, through ctypes: the library comes with the driver, and nothing has to be installed.
A job's container, whose Python records, need not have nvidia-ml-py.

Function and struct layouts: NVIDIA's nvml.h. A GPU that does not tell a figure has 0 there.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlprof_ops import env_names

_LIBRARY = "libnvidia-ml.so.1"
_CLOCK_SM, _TEMPERATURE_GPU = 1, 0
_PCIE_SENT, _PCIE_RECEIVED = 0, 1
_NVLINK_MOVED = (139, 138)  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX and TX, KiB
_ECC = 4  # NVML_FI_DEV_ECC_DBE_VOL_TOTAL
# Totals over all links, NVML_FI_DEV_NVLINK_…_ERROR_COUNT_TOTAL: CRC_FLIT, CRC_DATA, REPLAY, RECOVERY.
_NVLINK_ERRORS = (38, 45, 52, 59)
_FIELDS = (*_NVLINK_MOVED, _ECC, *_NVLINK_ERRORS)
_ALL_LINKS = 0xFFFFFFFF
_XID_EVENT, _OFF_THE_BUS = 0x8, 79  # nvmlEventTypeXidCriticalError, and the number of the worst one
_NOT_SUPPORTED, _LOST = 3, 15
_MOST_EVENTS = 16  # of one look
_UNSIGNED_INT, _UNSIGNED_LONG, _UNSIGNED_LONG_LONG = 1, 2, 3

# nvmlClocksThrottleReasons: what slows a GPU that is not meant to be slow. Being idle, an application's clock
# and the power cap of a full load are ordinary.
_BAD_THROTTLE = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}


def throttle_words(bits: int) -> str:
    """The reasons in `bits` that are faults, "" for none."""
    return ", ".join(word for bit, word in _BAD_THROTTLE.items() if bits & bit)


@dataclass(frozen=True)
class GpuSample:
    """One look at one GPU. `xid` is the latest that the driver has told since the first look, 79 of a GPU
    that NVML has lost. Errors are counted since then, of ECC those that could not be corrected.
    """

    gpu: int
    busy_percent: int
    temperature_c: int
    power_w: int
    sm_mhz: int
    memory_mib: int
    memory_total_mib: int
    throttle: int
    pcie_mib_s: int
    nvlink_mib_s: int
    xid: int = 0
    ecc_errors: int = 0
    nvlink_errors: int = 0


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    """nvmlMemory_t, whose `used` has what the driver keeps for itself too: 0.6 of 140 GiB of an H200."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Memory2(ctypes.Structure):
    """nvmlMemory_v2_t, `used` as nvidia-smi has it."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Value(ctypes.Union):
    _fields_ = (
        ("d", ctypes.c_double),
        ("i", ctypes.c_uint),
        ("l", ctypes.c_ulong),
        ("ll", ctypes.c_ulonglong),
    )


class _Field(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("kind", ctypes.c_uint),
        ("result", ctypes.c_uint),
        ("value", _Value),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("kind", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class GpuSamples:
    """All GPUs of this node; none where there is no NVML. RLPROF_NVML names another library, for tests."""

    def __init__(self, library: str | None = None) -> None:
        self._nvml: Any = None
        self._handles: list[ctypes.c_void_p] = []
        self._nvlink: dict[int, tuple[float, int]] = {}
        self._pcie_mib_s: dict[int, int] = {}
        self._errors: dict[int, tuple[int, int]] = {}  # at the first look
        self._events: ctypes.c_void_p | None = None
        self._xids: dict[int, int] = {}
        self._turn = 0
        self._mute: set[tuple[str, int]] = set()  # what a GPU has said that it does not tell
        try:
            self._nvml = ctypes.CDLL(library or os.environ.get(env_names.NVML) or _LIBRARY)
            if self._nvml.nvmlInit_v2():
                self._nvml = None
        except (OSError, AttributeError):
            self._nvml = None
        if self._nvml is not None:
            self._find()

    def _find(self) -> None:
        count = ctypes.c_uint()
        if self._nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return
        for number in range(count.value):
            handle = ctypes.c_void_p()
            if not self._nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)):
                self._handles.append(handle)
        events = ctypes.c_void_p()
        if hasattr(self._nvml, "nvmlEventSetWait_v2") and not self._nvml.nvmlEventSetCreate(
            ctypes.byref(events)
        ):
            self._events = events
            for number in range(len(self._handles)):
                self._ask("nvmlDeviceRegisterEvents", number, ctypes.c_ulonglong(_XID_EVENT), events)

    def __len__(self) -> int:
        return len(self._handles)

    def look(self) -> list[GpuSample]:
        self._turn += 1
        self._hear()
        return [self._sample(number) for number in range(len(self._handles))]

    def _hear(self) -> None:
        """Take the XIDs that have been told meanwhile."""
        event = _Event()
        for _ in range(_MOST_EVENTS if self._events else 0):
            if self._nvml.nvmlEventSetWait_v2(self._events, ctypes.byref(event), 0):
                return
            for number, handle in enumerate(self._handles):
                if handle.value == event.device:
                    self._xids[number] = min(event.data, 0xFFFF)

    def close(self) -> None:
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml, self._handles = None, []

    def _ask(self, function: str, number: int, *arguments: Any) -> bool:
        """Whether NVML has answered into the last argument."""
        if (function, number) in self._mute:
            return False
        try:
            code = getattr(self._nvml, function)(self._handles[number], *arguments)
        except AttributeError:  # an older driver's library
            code = -1
        if code in (-1, _NOT_SUPPORTED, 13):  # NVML_ERROR_FUNCTION_NOT_FOUND: it stays so
            self._mute.add((function, number))
        if code == _LOST:
            self._xids[number] = _OFF_THE_BUS
        return bool(code == 0)

    def _number(self, function: str, number: int, *before: Any) -> int:
        found = ctypes.c_uint()
        asked = self._ask(function, number, *before, ctypes.byref(found))
        return found.value if asked else 0

    def _sample(self, number: int) -> GpuSample:
        rates, memory, reasons = _Rates(), self._memory(number), ctypes.c_ulonglong()
        self._ask("nvmlDeviceGetUtilizationRates", number, ctypes.byref(rates))
        if not self._ask("nvmlDeviceGetCurrentClocksEventReasons", number, ctypes.byref(reasons)):
            self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", number, ctypes.byref(reasons))
        told = self._told(number)
        errors = told.get(_ECC, 0), sum(told.get(each, 0) for each in _NVLINK_ERRORS)
        before = self._errors.setdefault(number, errors)
        return GpuSample(
            number,
            rates.gpu,
            self._number("nvmlDeviceGetTemperature", number, _TEMPERATURE_GPU),
            self._number("nvmlDeviceGetPowerUsage", number) // 1000,
            self._number("nvmlDeviceGetClockInfo", number, _CLOCK_SM),
            memory.used >> 20,
            memory.total >> 20,
            reasons.value & 0xFFFF,
            self._pcie(number),
            self._nvlink_rate(number, told),
            self._xids.get(number, 0),
            max(0, errors[0] - before[0]),
            max(0, errors[1] - before[1]),
        )

    def _memory(self, number: int) -> _Memory | _Memory2:
        second = _Memory2(version=ctypes.sizeof(_Memory2) | 2 << 24)
        if self._ask("nvmlDeviceGetMemoryInfo_v2", number, ctypes.byref(second)):
            return second
        first = _Memory()
        self._ask("nvmlDeviceGetMemoryInfo", number, ctypes.byref(first))
        return first

    def _pcie(self, number: int) -> int:
        """Both ways, MiB/s. NVML watches the bus for 20 ms a call, so a look asks one GPU and keeps what the
        others said last."""
        if self._turn % len(self._handles) == number:
            ways = (_PCIE_SENT, _PCIE_RECEIVED)
            moved = sum(self._number("nvmlDeviceGetPcieThroughput", number, way) for way in ways)
            self._pcie_mib_s[number] = moved >> 10
        return self._pcie_mib_s.get(number, 0)

    def _told(self, number: int) -> dict[int, int]:
        """What this GPU tells of `_FIELDS`."""
        fields = (_Field * len(_FIELDS))()
        for field, identity in zip(fields, _FIELDS, strict=True):
            field.id, field.scope = identity, _ALL_LINKS if identity in _NVLINK_MOVED else 0
        if not self._ask("nvmlDeviceGetFieldValues", number, len(fields), fields):
            return {}
        if all(field.result == _NOT_SUPPORTED for field in fields):
            self._mute.add(("nvmlDeviceGetFieldValues", number))
        return {field.id: _number_of(field) for field in fields if not field.result}

    def _nvlink_rate(self, number: int, told: Mapping[int, int]) -> int:
        """Both ways over all links, MiB/s since the look before."""
        if not all(each in told for each in _NVLINK_MOVED):
            return 0
        kib, now = sum(told[each] for each in _NVLINK_MOVED), time.monotonic()
        then, before = self._nvlink.get(number, (now, kib))
        self._nvlink[number] = (now, kib)
        return int((kib - before) / 1024 / (now - then)) if now > then and kib >= before else 0


def _number_of(field: _Field) -> int:
    if field.kind == _UNSIGNED_INT:
        return int(field.value.i)
    return int(field.value.l if field.kind == _UNSIGNED_LONG else field.value.ll)
