"""Ranges on everything that training code is made of: balanced, once, and errors untouched."""

import asyncio
import copy
import functools
import gc
import inspect
import pickle
import threading
import types

import pytest

from rlprof_ops.runtime import profiler


class Boom(Exception):
    pass


def in_step(prof, act):
    with prof.step(3):
        return act()


def test_outside_windows_nothing_is_recorded_and_no_object_is_made(recorder):
    prof, fake = recorder()

    assert prof.range("a") is prof.range("b")
    assert prof.annotate("f")(lambda: 7)() == 7
    assert fake.log == []


def test_ranges_nest_in_the_step(recorder):
    prof, fake = recorder()

    with prof.step(3), prof.range("generation"), prof.range("inner"):
        pass
    with prof.step(4), prof.range("train"):
        pass

    assert fake.log == [
        "[",
        "+step",
        "3",
        "+generation",
        "+inner",
        "-inner",
        "-generation",
        "-step",
        "3",
        "+step",
        "4",
        "+train",
        "-train",
        "-step",
        "4",
        "]",
    ] or (
        " ".join(fake.log)
        == "[ +step 3 +generation +inner -inner -generation -step 3 +step 4 +train -train -step 4 ]"
    )


def plain(x):
    """doc"""
    if x == "boom":
        raise Boom(x)
    return [x, "done"]


async def coroutine(x):
    await asyncio.sleep(0)
    return plain(x)


def generator(x):
    got = yield 1
    yield got
    return plain(x)


async def async_generator(x):
    got = yield 1
    yield got
    plain(x)


def drive(kind, function, x):
    """Run one of the four kinds to its end, sending "sent" in where that is possible."""
    if kind == "plain":
        return function(x)
    if kind == "coroutine":
        return asyncio.run(function(x))
    if kind == "generator":
        run = function(x)
        items = [next(run), run.send("sent")]
        try:
            next(run)
        except StopIteration as stop:
            return [*items, stop.value]

    async def consume():
        run = function(x)
        items = [await run.__anext__(), await run.asend("sent")]
        with pytest.raises(StopAsyncIteration):
            await run.__anext__()
        return items

    return asyncio.run(consume())


KINDS = {"plain": plain, "coroutine": coroutine, "generator": generator, "async_generator": async_generator}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [True, False])
def test_an_annotated_function_behaves_as_before(recorder, kind, window):
    prof, fake = recorder()
    function = prof.annotate("work")(KINDS[kind])

    if window:
        result = in_step(prof, lambda: drive(kind, function, "x"))
    else:
        result = drive(kind, function, "x")

    assert result == drive(kind, KINDS[kind], "x")
    assert function.__name__ == KINDS[kind].__name__ and function.__doc__ == KINDS[kind].__doc__
    assert fake.log.count("+work") == fake.log.count("-work") == (1 if window else 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [True, False])
def test_the_users_exception_comes_out_unchanged_and_once(recorder, kind, window):
    prof, fake = recorder()
    calls = []
    error = Boom("mine")

    def fail(*_):
        calls.append(1)
        raise error

    raising = fail
    if kind == "coroutine":

        async def raising(x):
            await asyncio.sleep(0)
            fail()
    elif kind == "generator":

        def raising(x):
            yield 1
            yield 2
            fail()
    elif kind == "async_generator":

        async def raising(x):
            yield 1
            yield 2
            fail()

    function = prof.annotate("work")(raising)
    with pytest.raises(Boom) as caught:
        if window:
            in_step(prof, lambda: drive(kind, function, "x"))
        else:
            drive(kind, function, "x")

    assert caught.value is error and error.__context__ is None and error.__cause__ is None
    assert calls == [1]
    assert fake.log.count("+work") == fake.log.count("-work") == (1 if window else 0)


def test_generators_left_early_end_their_range(recorder):
    prof, fake = recorder()
    function = prof.annotate("work")(generator)
    asynchronous = prof.annotate("async work")(async_generator)

    async def leave():
        run = asynchronous("x")
        await run.__anext__()
        await run.aclose()

    with prof.step(3):
        run = function("x")
        next(run)
        run.close()
        asyncio.run(leave())

    assert [entry for entry in fake.log if "work" in entry] == [
        "+work",
        "-work",
        "+async work",
        "-async work",
    ]


def test_what_is_thrown_into_a_generator_reaches_it(recorder):
    prof, _ = recorder()

    def catching():
        try:
            yield 1
        except Boom:
            yield "caught"

    async def catching_async():
        try:
            yield 1
        except Boom:
            yield "caught"

    async def throw():
        run = prof.annotate("b")(catching_async)()
        await run.__anext__()
        return await run.athrow(Boom())

    with prof.step(3):
        run = prof.annotate("a")(catching)()
        next(run)
        assert run.throw(Boom()) == "caught"
        assert asyncio.run(throw()) == "caught"


def test_methods_of_every_kind(recorder):
    prof, fake = recorder()

    class Worker:
        base = 10

        @prof.annotate("method")
        def method(self, x):
            return self.base + x

        @prof.annotate("static")
        @staticmethod
        def static(x):
            return x

        @prof.annotate("class")
        @classmethod
        def of_class(cls, x):
            return cls.base + x

        @prof.annotate
        def bare(self):
            return 5

    with prof.step(3):
        worker = Worker()
        assert (worker.method(1), worker.static(2), worker.of_class(3), worker.bare()) == (11, 2, 13, 5)

    assert [entry[1:] for entry in fake.log if entry[0] == "+"][1:] == [
        "method",
        "static",
        "class",
        Worker.bare.__qualname__,
    ]


def test_a_class_cannot_be_annotated(recorder):
    prof, _ = recorder()

    with pytest.raises(TypeError, match="annotate is for functions and methods"):
        prof.annotate("x")(int)


def scored(x, y=2):
    return x * y


class Doubled:
    factor = 2

    def __call__(self, x):
        return x * self.factor

    def of(self, x):
        return x * self.factor


def test_a_partial_stays_one(recorder):
    prof, fake = recorder()

    async def slept(x):
        return x

    partial = functools.partial(scored, y=3)
    partial.unit = "points"
    annotated = prof.annotate("score")(partial)
    further = functools.partial(prof.annotate("further")(annotated), 7)
    awaited = prof.annotate("awaited")(functools.partial(slept, 5))

    assert inspect.iscoroutinefunction(awaited) and inspect.signature(annotated) == inspect.signature(partial)
    assert isinstance(annotated, functools.partial) and annotated.unit == "points"
    assert (annotated.func, annotated.keywords, awaited.args) == (scored, {"y": 3}, (5,))
    for loaded in (pickle.loads(pickle.dumps(annotated)), copy.copy(annotated)):
        assert loaded(2) == 6 and loaded.unit == "points"
    with prof.step(3):
        assert (annotated(2), annotated(2, y=4), further(), asyncio.run(awaited())) == (6, 8, 21, 5)
    assert [entry for entry in fake.log if entry[0] == "+"][1:] == [
        "+score",
        "+score",
        "+further",
        "+score",
        "+awaited",
    ]


@pytest.mark.filterwarnings("ignore:functools.partial will be a method descriptor")  # Python 3.13 of any
def test_what_is_bound_already_becomes_no_method_of_a_class(recorder):
    prof, fake = recorder()

    class Reward:
        partial = prof.annotate("partial")(functools.partial(scored, 5))
        bound = prof.annotate("bound")(Doubled().of)
        builtin = prof.annotate("builtin")(max)
        function = prof.annotate("function")(lambda self, x: x)

    reward = Reward()
    assert Reward.bound.__self__.factor == 2 and reward.builtin.__name__ == "max"
    with prof.step(3):
        found = reward.partial(), reward.bound(4), reward.builtin(3, 9), reward.function(1)
    assert found == (10, 8, 9, 1)
    assert [entry[1:] for entry in fake.log if entry[0] == "+"][1:] == list(vars(Reward))[1:5]


def test_a_generator_that_may_be_awaited_stays_one(recorder):
    prof, fake = recorder()

    @prof.annotate("awaited")
    @types.coroutine
    def awaited():
        yield from asyncio.sleep(0).__await__()
        return 5

    async def main():
        return await awaited()

    assert in_step(prof, lambda: asyncio.run(main())) == 5
    assert fake.log.count("+awaited") == fake.log.count("-awaited") == 1


def test_old_ways_to_ask_for_a_signature(recorder):
    prof, _ = recorder()

    assert inspect.getfullargspec(prof.annotate("f")(scored)) == inspect.getfullargspec(scored)


def test_interleaved_coroutines_end_their_own_ranges(recorder):
    prof, fake = recorder()
    first_inside, second_ended = asyncio.Event(), asyncio.Event()

    @prof.annotate("first")
    async def first():
        first_inside.set()
        await second_ended.wait()

    @prof.annotate("second")
    async def second():
        await asyncio.sleep(0)

    async def both():
        task = asyncio.create_task(first())
        await first_inside.wait()
        await second()
        second_ended.set()
        await task

    with prof.step(3):
        asyncio.run(both())

    assert [entry for entry in fake.log if "step" not in entry and len(entry) > 1] == [
        "+first",
        "+second",
        "-second",
        "-first",
    ]


@pytest.mark.parametrize("moment", ["open", "close", "start", "end"])
def test_a_failing_profiler_is_not_noticed_by_training(recorder, events, capsys, moment):
    prof, fake = recorder(steps="3:5,6")
    fake.fail = moment
    work = prof.annotate("work")(lambda x: x * x)

    results = []
    for step in range(1, 8):
        with prof.step(step), prof.range("phase"):
            results.append(work(step))
    prof.close()

    assert results == [1, 4, 9, 16, 25, 36, 49]
    failed = [event["reason"] for event in events("failed")]
    assert failed == (["No space left on device"] * 2 if moment in ("open", "close") else [])
    assert capsys.readouterr().err.count("No space left on device") == 1


def test_a_decorator_older_than_the_profiler(recorder, asked):
    asked()

    @profiler.annotate("early")
    def early():
        return 1

    prof, fake = recorder()
    with prof.step(3):
        early()

    assert "+early" in fake.log and "-early" in fake.log


def test_the_decorator_hands_the_function_back_where_nothing_is_asked(monkeypatch):
    for name in (*profiler._ASKING, *profiler._LISTENING):
        monkeypatch.delenv(name, raising=False)

    assert profiler.annotate("x")(plain) is plain
    assert profiler.annotate(plain) is plain


@pytest.mark.parametrize("reset", [False, True])
def test_times_while_what_was_left_is_collected(recorder, reset):
    """Reading allocates; what is collected then may be a generator whose range ends with it."""
    prof, _ = recorder(metrics=True)

    @prof.annotate("pieces")
    def pieces():
        me = yield
        yield me

    def read_beside_garbage():
        total = 0
        for name in range(100):
            with prof.range(f"name {name}"):
                pass
        for _ in range(300):
            for _ in range(5):
                left = pieces()
                next(left)
                left.send([left])  # a circle, which the collector alone takes apart
            times = prof.metrics(reset)
            if reset and "pieces" in times:
                total += times["pieces"].count
        del left
        gc.collect()
        counts.append(total + prof.metrics()["pieces"].count)

    counts = []
    thread = threading.Thread(target=read_beside_garbage, daemon=True)
    threshold = gc.get_threshold()
    gc.set_threshold(20)
    try:
        thread.start()
        thread.join(timeout=30)
    finally:
        gc.set_threshold(*threshold)
    assert counts == [300 * 5]


def test_times_of_ranges_also_outside_windows(recorder):
    prof, fake = recorder(metrics=True)

    @prof.annotate("reward")
    def reward():
        raise Boom

    for step in (1, 2):
        with prof.step(step):
            with prof.range("train"):
                pass
            with pytest.raises(Boom):
                reward()

    times = prof.metrics()
    assert {name: entry.count for name, entry in times.items()} == {"train": 2, "reward": 2}
    assert 0 < times["train"].max_s <= times["train"].total_s < 60
    assert fake.log == []
    assert prof.metrics(reset=True) == times and prof.metrics() == {}
