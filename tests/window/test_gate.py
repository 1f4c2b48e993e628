"""The step gate: which windows open and close for every way that steps may come."""

import pytest

from rlprof_ops.request import Window
from rlprof_ops.window.gate import NEVER, StepGate

WINDOWS = [Window(3, 5), Window(7, 8)]


def run(steps, windows=WINDOWS, finish=True):
    """What a gate did for these steps: (opened at, window start) and (closed, window start, partial,
    seen).
    """
    done = []
    gate = StepGate(
        windows,
        lambda window: done.append(("open", window.window.start)),
        lambda window, partial: done.append(("close", window.window.start, partial, list(window.seen))),
    )
    for step in steps:
        gate.enter(step)
        gate.leave(step)
    if finish:
        gate.close(partial=True)
    return done


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (range(1, 9), [("open", 3), ("close", 3, False, [3, 4]), ("open", 7), ("close", 7, False, [7])]),
        ([4, 5], [("open", 3), ("close", 3, True, [4])]),  # resumed inside the window
        ([3, 9], [("open", 3), ("close", 3, True, [3])]),  # skipped the rest
        ([3, 7], [("open", 3), ("close", 3, True, [3]), ("open", 7), ("close", 7, False, [7])]),
        ([3, 3, 4], [("open", 3), ("close", 3, False, [3, 3, 4])]),  # a repeated step
        ([3, 4, 3, 4], [("open", 3), ("close", 3, False, [3, 4])]),  # taken once
        ([3], [("open", 3), ("close", 3, True, [3])]),  # training ended inside
        ([1, 2, 5, 6, 100], []),
    ],
)
def test_windows_open_and_close_with_their_steps(steps, expected):
    assert run(steps) == expected


def test_an_open_window_closes_at_the_end():
    assert run([2, 9], [Window(2, None)]) == [("open", 2), ("close", 2, True, [2, 9])]


@pytest.mark.parametrize(
    ("step", "quiet"), [(1, (-NEVER, 3)), (3, (3, 3)), (5, (5, 7)), (6, (5, 7)), (8, (8, NEVER))]
)
def test_quiet_steps_are_those_between_windows(step, quiet):
    assert StepGate(WINDOWS, lambda _: None, lambda *_: None).inactive_step_range(step) == quiet
