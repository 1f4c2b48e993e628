"""The network interface behind an address: gloo must use the node's own, and host names may not resolve."""

from __future__ import annotations

import fcntl
import os
import socket
import struct

SIOCGIFADDR = 0x8915  # linux/sockios.h: the IPv4 address of an interface


def interface_of(address: str) -> str | None:
    """Name of the interface that carries the IPv4 `address`, or None when no interface here does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
            except OSError:  # an interface without an IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def bind_gloo_to(address: str) -> None:
    """Make gloo of this process listen on the interface of `address`; without one, leave the choice to
    gloo.
    """
    interface = interface_of(address)
    if interface:
        os.environ["GLOO_SOCKET_IFNAME"] = interface
