"""Hooks around functions that are not ours: what a pickle of one is elsewhere, and what a hook may change."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rlprof_ops.runtime.process import hooks
from rlprof_ops.runtime.process.hooks import Intercept, Substitute, UnknownShape, Watch

cloudpickle = pytest.importorskip("ray.cloudpickle")

BEGUN: list[Any] = []


def begin(*arguments: Any, **named: Any) -> None:
    BEGUN.append((arguments, named))


def prepare(arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return Substitute("answered") if named.get("answer") else ((*arguments, 1), named)


def a_module(source: str) -> ModuleType:
    """A module that nobody can import, as `__main__` is for another process."""
    module = ModuleType("nowhere")
    exec(source, module.__dict__)
    return module


def test_carried_by_value_it_is_watched_here_and_the_bare_function_where_the_package_is_not(tmp_path: Path):
    module = a_module(
        "def plain(a, b=2):\n    return a + b\n"
        "async def later(a):\n    return a\n"
        "def pieces(a):\n    got = yield a\n    return got\n"
    )
    hooks.follow(module, "plain", Watch("test", begin))
    hooks.follow(module, "later", Watch("test", begin))
    hooks.follow(module, "pieces", Watch("test", begin))
    bare = a_module("def changed(*a, **k):\n    return a")
    hooks.follow(bare, "changed", Intercept("test", prepare))
    data = cloudpickle.dumps([module.plain, module.later, module.pieces, bare.changed])

    BEGUN.clear()
    assert cloudpickle.loads(data)[0](1) == 3 and cloudpickle.loads(data)[3](0) == (0, 1)
    assert BEGUN == [((1,), {})]

    file = tmp_path / "functions.pickle"
    file.write_bytes(data)
    code = (
        f"import sys; sys.path.append({sysconfig.get_path('purelib')!r})\n"
        "import importlib.util, inspect, pickle\n"
        "assert importlib.util.find_spec('rlprof_ops') is None\n"
        f"plain, later, pieces, changed = pickle.load(open({str(file)!r}, 'rb'))\n"
        "assert inspect.iscoroutinefunction(later) and inspect.isgeneratorfunction(pieces)\n"
        "print(plain(1), plain(1, b=5), list(pieces(7)), changed(0))"
    )
    # -S: the folder of packages without what an editable install adds to the path
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=120, env={}, cwd=tmp_path
    )
    assert done.stdout == "3 6 [7] (0,)\n", done.stderr


def test_pickled_by_reference_it_is_itself(monkeypatch: pytest.MonkeyPatch):
    module = ModuleType("somewhere")
    exec("def plain(a):\n    return a", module.__dict__)
    monkeypatch.setitem(sys.modules, "somewhere", module)
    hooks.follow(module, "plain", Watch("test", begin))
    assert pickle.loads(pickle.dumps(module.plain)) is module.plain


def test_an_intercept_answers_or_changes_a_call():
    module = a_module("def call(*a, **k):\n    return a, k")
    hooks.follow(module, "call", Intercept("test", prepare))
    assert module.call(0, answer=True) == "answered"
    assert module.call(0, b=2) == ((0, 1), {"b": 2})


def test_it_is_done_once_for_each_mark():
    module = a_module("def call(a):\n    return a")
    for mark in ("one", "one", "two"):
        hooks.follow(module, "call", Watch("test", begin), mark)
    BEGUN.clear()
    assert module.call(1) == 1 and len(BEGUN) == 2


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_a_method_stays_of_its_kind_for_a_subclass_too(kind: Any):
    class Owner:
        call = kind(lambda *given: given)

    hooks.follow(Owner, "call", Watch("test", begin))
    assert type(inspect.getattr_static(Owner, "call")) is kind

    class Mine(Owner): ...

    assert Mine.call(1) == ((Mine, 1) if kind is classmethod else (1,))


@pytest.mark.parametrize("value", [3, len, property(len), Exception])
def test_what_is_no_function_is_refused_by_its_name(value: Any):
    class Owner:
        call = value

    with pytest.raises(UnknownShape, match=r"Owner\.call is no function"):
        hooks.follow(Owner, "call", Watch("test", begin))
    assert inspect.getattr_static(Owner, "call") is value


def test_an_argument_lives_no_longer_than_without(monkeypatch: pytest.MonkeyPatch):
    import weakref

    class Batch: ...

    module = a_module("def call(batch):\n    return None")
    hooks.follow(module, "call", Watch("test", lambda batch: True, lambda token, error: None))
    batch = Batch()
    alive = weakref.ref(batch)
    module.call(batch)
    del batch
    assert alive() is None
