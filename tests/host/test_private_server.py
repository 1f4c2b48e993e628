"""Strangers at a server of one person: odd requests print nothing, and nobody holds it for long."""

import socket
import threading
import time

import pytest

from rlprof_ops.host.private_server import PrivateHandler, PrivateServer


class Handler(PrivateHandler):
    def do_GET(self):
        name = self.asked()
        self.head(200 if name is not None else 404, "text/plain")
        self.wfile.write((name or "none").encode())


@pytest.fixture
def server():
    server = PrivateServer(Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def answer(server, request):
    with socket.create_connection(("127.0.0.1", server.port), 60) as link:
        link.sendall(request)
        got = b""
        try:
            while block := link.recv(65536):
                got += block
        except ConnectionResetError:
            pass
        return got


def good(server):
    return answer(server, f"GET /{server.token}/page HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())


@pytest.mark.parametrize(
    "request_line, host",
    [
        ("GET /TOKEN/x HTTP/1.0", "["),
        ("GET /TOKEN/x HTTP/1.0", "[::1"),
        ("GET /TOKEN/x HTTP/1.0", "a]b"),
        ("GET http://[/x HTTP/1.0", "localhost"),
        ("GET //[ HTTP/1.0", "localhost"),
        ("GET /\u00ff/x HTTP/1.0", "localhost"),
        ("GET", "localhost"),
        ("POST /TOKEN/x HTTP/1.0", "localhost"),
        ("GET /TOKEN/x HTTP/9.x", "localhost"),
    ],
)
def test_an_odd_request_is_refused_in_silence(server, capfd, request_line, host):
    line = request_line.replace("TOKEN", server.token)
    got = answer(server, f"{line}\r\nHost: {host}\r\n\r\n".encode("latin-1"))
    assert b" 200 " not in got.split(b"\r\n")[0]
    assert good(server).endswith(b"page")
    assert capfd.readouterr().err == ""


def test_a_request_without_end_is_cut_off(server):
    with socket.create_connection(("127.0.0.1", server.port), 10) as link, pytest.raises(OSError):
        link.sendall(b"GET / HTTP/1.0\r\n")
        for number in range(2000):
            link.sendall(b"X-%d: %s\r\n" % (number, b"y" * 8000))
    assert good(server).endswith(b"page")


def test_who_says_nothing_is_sent_away_and_a_crowd_keeps_nobody_out(server, monkeypatch):
    monkeypatch.setattr(PrivateServer, "stranger_seconds", 4.0)  # in which even a busy client asks
    monkeypatch.setattr(PrivateServer, "most_strangers", 8)
    links = [socket.create_connection(("127.0.0.1", server.port), 60) for _ in range(40)]
    assert good(server).endswith(b"page")
    began = time.monotonic()
    for link in links:
        assert link.recv(10) == b""
        link.close()
    assert time.monotonic() - began < 45  # the 60 s of a handler's own are not waited for
    assert not server._strangers


def test_a_fault_of_ours_is_one_line(server, capfd, monkeypatch):
    monkeypatch.setattr(Handler, "do_GET", lambda self: 1 / 0)
    assert good(server) == b""
    deadline = time.monotonic() + 60
    text = ""
    while not text and time.monotonic() < deadline:
        text = capfd.readouterr().err
    assert text == "rlprof: a request failed: ZeroDivisionError: division by zero\n"
