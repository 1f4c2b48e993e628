"""Finding the interface of an address."""

import os

from rlprof_ops.demo.network import bind_gloo_to, interface_of


def test_loopback_is_found():
    assert interface_of("127.0.0.1") == "lo"


def test_an_address_of_nobody_leaves_the_choice_to_gloo(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)

    bind_gloo_to("203.0.113.77")  # TEST-NET-3, on no interface

    assert interface_of("203.0.113.77") is None
    assert "GLOO_SOCKET_IFNAME" not in os.environ
