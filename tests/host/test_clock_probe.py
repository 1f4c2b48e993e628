"""The clock probe: what is measured is true within its own error, and strangers get no answer."""

import socket
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlprof_ops.host.clock_probe import ClockServer, Exchange, estimate, measure

KEY = b"token of the job"


@pytest.fixture
def server():
    servers = []

    def start(**more):
        servers.append(ClockServer("127.0.0.1", KEY, **more))
        return servers[-1]

    yield start
    for each in servers:
        each.close()


@pytest.mark.parametrize("ahead_ns", [0, 3_600 * 10**9, -7_000_000])
def test_a_clock_that_is_ahead_is_measured_within_its_error(server, ahead_ns):
    remote = server(clock=lambda: time.time_ns() + ahead_ns)
    found = measure("127.0.0.1", remote.port, KEY, timeout_s=60)  # which a busy machine loses none in
    assert found is not None and found.exchanges == 16
    assert abs(found.offset_ns - ahead_ns) <= found.error_ns < 10**7


def test_without_the_key_there_is_no_answer(server):
    assert measure("127.0.0.1", server().port, b"another key", exchanges=2, timeout_s=0.05) is None


def test_rubbish_does_not_end_the_server(server):
    remote = server()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as channel:
        for rubbish in (b"", b"x", b"y" * 32, b"z" * 5000):
            channel.sendto(rubbish, ("127.0.0.1", remote.port))
    assert measure("127.0.0.1", remote.port, KEY, timeout_s=60) is not None


def test_nobody_there_is_none_and_not_a_wait():
    started = time.monotonic()
    assert measure("127.0.0.1", 9, KEY, timeout_s=0.05) is None
    assert time.monotonic() - started < 20
    assert measure("no.such.host.invalid", 9, KEY) is None  # after as long as the resolver takes


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # of a busy machine
@given(
    st.integers(-(10**12), 10**12),
    st.lists(
        st.tuples(st.integers(0, 10**8), st.integers(0, 10**8), st.integers(0, 10**6)), min_size=1, max_size=8
    ),
)
def test_the_truth_is_always_within_the_error(ahead, ways):
    """`ways`: nanoseconds there, back, and between receiving and replying."""
    exchanges = [
        Exchange(t, t + there + ahead, t + there + ahead + between, t + there + between + back)
        for t, (there, back, between) in enumerate(ways, 10**18)
    ]
    found = estimate(exchanges)
    assert found is not None and abs(found.offset_ns - ahead) <= found.error_ns + 1


def test_an_impossible_exchange_is_left_out():
    assert estimate([Exchange(100, 0, 50, 120)]) is None  # the clock was set back meanwhile
    assert estimate([]) is None
