"""Hooks around functions of code that is not ours, which no version of that code can be broken by.

The function is called once, with what it was called with; its result and its error are its own. A hook sees
the arguments under a guard: what it does not understand is said once and changes nothing. Nothing is stored
on the code's objects. A wrapped function keeps its nature (plain, coroutine function, generator function,
context manager), its signature, its kind of method, and its pickling: carried by value into a process without
this package, it is the bare function.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import pickle
import sys
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType, TracebackType, coroutine
from typing import Any, ClassVar, NamedTuple

from rlprof_ops.host.threads.time_limits import time_limits_wait
from rlprof_ops.runtime.process.frames import local_values

_DONE = "_rlprof_wrapped"
# What `contextlib.contextmanager` returns for any generator function.
_CONTEXT_MANAGER = contextlib.contextmanager(lambda: iter(())).__code__
_BETWEEN = ("rlprof_ops", "contextlib")  # frames between a hook and the code whose call it hears of


class UnknownShape(Exception):
    """The trainer's module has not what the adapter wraps; the text names it."""


class Substitute(NamedTuple):
    """What `Intercept.prepare` returns to answer a call in the function's stead."""

    value: object


def safely(who: str, action: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    """What `action` returns; what it raises is said once and goes no further, since a trainer's code is
    above."""
    with time_limits_wait():
        try:
            return action(*arguments, **named)
        except Exception as error:
            complain(f"{who}: a call is not followed", error)
            return None


def complain(about: str, error: Exception) -> None:
    """Say an error once, also one whose text cannot be had."""
    from rlprof_ops.runtime.process.event_log import log_once

    try:
        text = str(error)
    except Exception:
        text = "its text cannot be had"
    log_once(f"{about}: {type(error).__name__}: {text}")


class _Hook:
    """What a wrapped function carries of ours. `elsewhere` is what it becomes where this package is not: an
    expression of the standard library's words, since a class of ours cannot be named there."""

    elsewhere: ClassVar[str]

    def state(self) -> tuple[object, ...]:
        raise NotImplementedError

    def __reduce__(self) -> tuple[object, ...]:
        found = "__import__('importlib.util').util.find_spec('rlprof_ops')"
        code = f"__import__('pickle').loads(state)() if {found} else {self.elsewhere}"
        return eval, (code, {"state": pickle.dumps(functools.partial(type(self), *self.state()))})


class Watch(_Hook):
    """Hears of calls: `begin(*arguments, **named)` before one, `end(token, error)` after it where `begin`
    returned a token. Without `end` the token is a context that was entered."""

    elsewhere = "lambda *_: __import__('contextlib').nullcontext()"

    def __init__(
        self,
        who: str,
        begin: Callable[..., Any],
        end: Callable[[Any, BaseException | None], object] | None = None,
    ) -> None:
        self.who = who
        self.begin = begin
        self.end = end

    def state(self) -> tuple[object, ...]:
        return self.who, self.begin, self.end

    def __call__(
        self, arguments: tuple[Any, ...], named: Mapping[str, Any]
    ) -> contextlib.AbstractContextManager[None]:
        token = safely(self.who, self.begin, *arguments, **named)
        return contextlib.nullcontext() if token is None else _Watched(self, token)


class _Watched:
    """One call that is watched."""

    __slots__ = ("_token", "_watch")

    def __init__(self, watch: Watch, token: object) -> None:
        self._watch = watch
        self._token = token

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        watch, token = self._watch, self._token
        if watch.end is not None:
            safely(watch.who, watch.end, token, error)
        else:
            safely(watch.who, _leave, token, kind, error, traceback)


def _leave(context: Any, *error: object) -> None:
    context.__exit__(*error)


def _nothing() -> None:
    return None


class Intercept(_Hook):
    """Changes calls: `prepare(arguments, named)` returns other ones, a `Substitute`, or None for the same;
    `finish(result, arguments, named)` returns what the caller gets; `failed()` is called where that fails."""

    elsewhere = "lambda call, arguments, named: call(*arguments, **named)"

    def __init__(
        self,
        who: str,
        prepare: Callable[[tuple[Any, ...], dict[str, Any]], Any] | None = None,
        finish: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] | None = None,
        failed: Callable[[], None] = _nothing,
    ) -> None:
        self.who = who
        self.prepare = prepare
        self.finish = finish
        self.failed = failed

    def state(self) -> tuple[object, ...]:
        return self.who, self.prepare, self.finish, self.failed

    def __call__(self, call: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if self.prepare is not None:
            prepared = safely(self.who, self.prepare, arguments, dict(named))
            if isinstance(prepared, Substitute):
                return prepared.value
            arguments, named = (arguments, named) if prepared is None else prepared
        result = call(*arguments, **named)
        if self.finish is None:
            return result
        with time_limits_wait():
            try:
                return self.finish(result, arguments, named)
            except Exception as error:
                safely(self.who, self.failed)
                complain(f"{self.who}: a result is left as it is", error)
                return result


def wrapped(function: Any, hook: Watch | Intercept) -> Any:
    """A function of the same nature as `function` with the hook around it.

    Raises:
        UnknownShape: no function, or one of a nature that a hook cannot keep.
    """
    if not isinstance(function, FunctionType):
        raise UnknownShape(f"a {type(function).__name__} stands where a function is expected")
    if function.__code__ is _CONTEXT_MANAGER and isinstance(hook, Watch):
        inner = wrapped(getattr(function, "__wrapped__", None), hook)
        after = contextlib.contextmanager(inner)
        after.__dict__.clear()  # of the inner one, its signature among them
        return dressed(function, after)
    if inspect.isasyncgenfunction(function) or (isinstance(hook, Intercept) and _runs_later(function)):
        raise UnknownShape("a generator or a coroutine stands where a plain function is expected")
    if isinstance(hook, Intercept):
        after = _intercepted(function, hook)
    elif inspect.isgeneratorfunction(function):
        after = _generated(function, hook)
    elif inspect.iscoroutinefunction(function):
        after = _awaited(function, hook)
    else:
        after = _called(function, hook)
    return dressed(function, after)


def _runs_later(function: Any) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function)


# The functions below name nothing of this module: `cloudpickle` carries them by value with their closure.
def _called(before: Any, watch: Watch) -> Any:
    def called(*args: Any, **kwargs: Any) -> Any:
        with watch(args, kwargs):
            return before(*args, **kwargs)

    return called


def _awaited(before: Any, watch: Watch) -> Any:
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        with watch(args, kwargs):
            return await before(*args, **kwargs)

    return awaited


def _generated(before: Any, watch: Watch) -> Any:
    def generated(*args: Any, **kwargs: Any) -> Any:
        with watch(args, kwargs):
            return (yield from before(*args, **kwargs))

    return generated


def _intercepted(before: Any, intercept: Intercept) -> Any:
    def intercepted(*args: Any, **kwargs: Any) -> Any:
        return intercept(before, args, kwargs)

    return intercepted


def dressed(before: Any, after: Any) -> Any:
    """`after` with the name, the attributes and the signature of `before`; awaited, where that may be
    (`types.coroutine`).
    """
    if inspect.isgeneratorfunction(before) and before.__code__.co_flags & inspect.CO_ITERABLE_COROUTINE:
        after = coroutine(after)
    functools.update_wrapper(after, before)
    if not hasattr(before, "__wrapped__"):
        with contextlib.suppress(ValueError, TypeError):
            after.__signature__ = inspect.signature(before)  # `inspect.getfullargspec` follows no wrapper
    return after


def follow(owner: Any, name: str, hook: Watch | Intercept, mark: str = _DONE) -> None:
    """Put a hook around `owner.name`, once for each `mark`: a function of a module, a method of a class of
    any kind, or one of an object that a module keeps (`record = TRACKER.record`).

    Raises:
        UnknownShape: there is no such function, or one of a nature that a hook cannot keep.
    """
    attribute(owner, name)
    before = inspect.getattr_static(owner, name)
    kind: Callable[[Any], Any] | None = None
    if isinstance(before, (staticmethod, classmethod)):
        kind = type(before)
    elif isinstance(before, MethodType):
        kind = functools.partial(_bound, before.__self__)
    function = before.__func__ if kind else before
    if getattr(function, mark, False):
        return
    try:
        after = wrapped(function, hook)
    except UnknownShape as error:
        raise UnknownShape(f"{_named(owner)}.{name} is no function: {error}") from None
    setattr(after, mark, True)
    setattr(owner, name, kind(after) if kind else after)


def _bound(to: object, function: Any) -> MethodType:
    return MethodType(function, to)


def attribute(owner: Any, name: str) -> Any:
    """`owner.name`, or `UnknownShape` that says where it was looked for."""
    found = getattr(owner, name, None)
    if found is None:
        raise UnknownShape(f"{_named(owner)} has no {name}")
    return found


def _named(owner: Any) -> str:
    return getattr(owner, "__qualname__", None) or getattr(owner, "__name__", None) or type(owner).__name__


def expect(package: Any, *modules: str) -> None:
    """Raise `UnknownShape` for modules that a package lacks, without importing them: nobody else would say
    so."""
    import os

    def is_in(place: str) -> bool:
        return os.path.exists(f"{place}.py") or os.path.isdir(place)

    homes = list(getattr(package, "__path__", ()))
    lacking = [
        f"{package.__name__}.{module}"
        for module in modules
        if not any(is_in(os.path.join(home, *module.split("."))) for home in homes)
    ]
    if lacking:
        raise UnknownShape(f"there is no {', '.join(lacking)}")


def caller_locals(*names: str, through: str = "") -> tuple[Any, ...]:
    """Local variables, None where there are none, of the code that called a watched function, by whatever way
    `through` the trainer's module of that name; for a hook.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] not in _BETWEEN and module != through:
            break
        frame = frame.f_back
    return local_values(frame, *names)
