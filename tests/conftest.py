"""What every test has: parts that may be missing, and the Slurm sandbox."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from rlprof_ops import env_names
from tests import needs, tiers
from tests.sandbox.fixtures import slurm, slurm_sandbox
from tests.workers import plugin as workers

__all__ = ["need", "slurm", "slurm_sandbox"]

# The machines that run this are shared: nothing may depend on how long an example takes. The whole CI
# takes the same examples each time.
settings.register_profile(
    "rlprof",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="RLPROF_TESTS_REQUIRE" in os.environ,
)
settings.load_profile("rlprof")


@pytest.fixture(autouse=True)
def leaves_the_environment_as_it_was() -> Iterator[None]:
    """A variable that a test leaves would reach every job and process that later tests start."""
    before = dict(os.environ)
    yield
    os.environ.pop(env_names.SESSION_PID, None)  # a profiler made in this process tells its children
    left = {name for name in os.environ.keys() | before if os.environ.get(name) != before.get(name)}
    left = {name for name in left if name.startswith(("RLPROF_", "RAY_", "SLURM_", "NRL_", "NSYS_"))}
    for name in left:
        os.environ.pop(name, None)
        os.environ |= {name: before[name]} if name in before else {}
    left = {name for name in left if not name.startswith("RAY_")}  # Ray itself sets some in its process
    assert not left, f"left in the environment of later tests: {sorted(left)}"


@pytest.fixture(scope="session")
def need() -> Callable[..., None]:
    """`need("nsys", "pyarrow")` skips the test, or fails it under RLPROF_TESTS_REQUIRE=all, where a part
    is missing.
    """
    return needs.need


def pytest_configure(config: pytest.Config) -> None:
    # A shell without job control ignores SIGINT in what it starts with `&`, nohup SIGHUP; all that tests
    # start would inherit it.
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    # Two cores hold no second thread of each process that computes with torch: those would only spin.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    workers.register(config)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what another tier takes, and what a person runs who has the part and says so."""
    tiers.select(config, items)
    markers = {item: item.get_closest_marker("by_hand") for item in items}
    left_out = [item for item, marker in markers.items() if marker and not os.environ.get(marker.args[0])]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_runtest_setup(item: pytest.Item) -> None:
    needs.need(*(marker.name for marker in item.iter_markers() if marker.name in needs.PARTS))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note_missing_import(report)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note_missing_import(report)


def _note_missing_import(report: pytest.CollectReport | pytest.TestReport) -> None:
    if report.skipped and needs.required("all") and "could not import" in str(report.longrepr):
        needs.unmet.append(
            f"{report.nodeid}:"
            f" {report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr}"
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where every part is required, a module that importorskip did not find fails the run."""
    if needs.unmet:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    """Says last what was left to another tier and skipped for want of a part; only pytest's own line with the
    counts follows.
    """
    yield
    if told := tiers.told():
        terminalreporter.section(f"tests of other tiers (RLPROF_TESTS={tiers.tier()})")
        for line in told:
            terminalreporter.line(line)
    if needs.skipped:
        terminalreporter.section("missing parts of the test machine")
        for why, count in needs.skipped.items():
            terminalreporter.line(f"{count} skipped, {why}")
    if needs.unmet:
        terminalreporter.section("required (RLPROF_TESTS_REQUIRE) and missing")
        for why in needs.unmet:
            terminalreporter.line(why)
