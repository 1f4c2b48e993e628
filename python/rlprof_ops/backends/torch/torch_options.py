"""The options of the torch backend: words of a request, checked once, as arguments of `torch.profiler`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlprof_ops.backends.contract import Asked, Verdict, Where
from rlprof_ops.words import did_you_mean, truth

SUFFIX, PLAIN_SUFFIX = ".pt.trace.json.gz", ".pt.trace.json"
SWITCHES = ("record_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
ACTIVITIES = ("cpu", "cuda")
_COUNTS = ("wait", "warmup", "active", "repeat")
_OTHER = ("activities", "all_threads", "max_mb")
# RLinf's and verl's words for the same things.
_ALSO = {
    "schedule_wait": "wait",
    "schedule_warmup": "warmup",
    "schedule_active": "active",
    "schedule_repeat": "repeat",
    "shapes": "record_shapes",
    "memory": "profile_memory",
    "stack": "with_stack",
    "module": "with_modules",
}
# RLinf writes these too; every report of ours is a gzip Chrome trace under a name that TensorBoard's plugin
# reads.
_ALWAYS = ("export_tensorboard", "export_chrome_trace", "chrome_filename_prefix", "discrete")

# verl hands these to the engines alone: SGLang's profiler (`tool_config.torch` of rollout).
TRAINERS_OWN = ("profile_by_stage", "merge_profiles", "step_start", "step_end")

ALLOWED = (*SWITCHES, *_COUNTS, *_OTHER)


@dataclass(frozen=True)
class TorchOptions:
    """`wait`, `warmup`, `active` and `repeat` count steps inside the window; `active` 0: no schedule, all of
    the window.

    `max_mb`: a trace that is larger before compression is dropped and the capture fails, so that no disk
    fills up. `all_threads` records what other threads do too and lets any thread stop; torch loses
    allocations with it.
    """

    activities: tuple[str, ...] = ACTIVITIES
    switches: Mapping[str, bool] = field(default_factory=dict)
    wait: int = 0
    warmup: int = 0
    active: int = 0
    repeat: int = 1
    all_threads: bool = True
    max_mb: float = 8192.0

    @property
    def scheduled(self) -> bool:
        return bool(self.active or self.wait or self.warmup)


def parse(options: Mapping[str, Any], flags: Iterable[str] = ()) -> TorchOptions:
    """Read a request's options and flags; `with_stack` may be either.

    Raises:
        ValueError: an unknown name or a value that does not fit, with what is allowed and the nearest name.
    """
    words = {_name(name): str(value).strip() for name, value in options.items()}
    words.update({_name(flag): "true" for flag in flags})
    found: dict[str, Any] = {}
    switches: dict[str, bool] = {}
    for name, value in words.items():
        if name in _READERS:
            (switches if name in SWITCHES else found)[name] = _READERS[name](name, value)
        elif name not in _ALWAYS:
            hint = did_you_mean(name, ALLOWED)
            raise ValueError(f"the torch backend has no option {name!r}: it has {', '.join(ALLOWED)}.{hint}")
    for name in TRAINERS_OWN:
        found.pop(name, None)
    if switches.get("profile_memory"):
        found.setdefault("all_threads", False)
    return TorchOptions(switches=switches, **found)


def _name(name: str) -> str:
    plain = name.strip().lower().replace("-", "_")
    return _ALSO.get(plain, plain)


def _switch(name: str, value: str) -> bool:
    found = truth(value)
    if found is None:
        raise ValueError(f"torch option {name} is {value!r}: expected true or false")
    return found


def _count(name: str, value: str) -> int:
    least = 1 if name in ("active", "repeat") else 0
    if not value.isdecimal() or int(value) < least:
        raise ValueError(f"torch option {name} is {value!r}: expected a whole number of steps from {least}")
    return int(value)


def is_trainers_own(name: str) -> bool:
    """Whether only a trainer reads this option, and ours ignores it."""
    return _name(name) in TRAINERS_OWN


def _whole(name: str, value: str) -> None:
    if not value.removeprefix("-").isdecimal():
        raise ValueError(f"torch option {name} is {value!r}: expected a whole number of steps")


def _positive(name: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ValueError(f"torch option {name} is {value!r}: expected a number of megabytes above 0")
    return number


def _activities(name: str, value: str) -> tuple[str, ...]:
    names = tuple(
        part.strip().lower() for part in value.replace("+", ",").strip("[]").split(",") if part.strip()
    )
    wrong = [name for name in names if name not in ACTIVITIES]
    if wrong or not names:
        raise ValueError(f"torch option {name} is {value!r}: allowed are cpu and cuda")
    return names


_READERS: Mapping[str, Callable[[str, str], Any]] = {
    **dict.fromkeys((*SWITCHES, "all_threads", "profile_by_stage", "merge_profiles"), _switch),
    **dict.fromkeys(_COUNTS, _count),
    **dict.fromkeys(("step_start", "step_end"), _whole),
    "max_mb": _positive,
    "activities": _activities,
}


def validate(spec: Asked, where: Where) -> Verdict:
    """Wrong options, and words of trainers that have no effect in our own profiler."""
    try:
        parse(spec.options, spec.flags)
    except ValueError as error:
        return Verdict((str(error),))
    if where.trainer:
        return Verdict()
    others = [name for name in (*spec.options, *spec.flags) if is_trainers_own(name)]
    return Verdict(
        warnings=tuple(f"option {name!r} has no effect: only the trainer reads it" for name in others)
    )
