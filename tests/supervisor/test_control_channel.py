"""The control channel: a node with the token joins, one without does not, a broken link is noticed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlprof_ops.host.ports import free_port
from rlprof_ops.supervisor.capture_relay import CaptureAsked
from rlprof_ops.supervisor.control_channel import (
    ControlServer,
    Drain,
    Ending,
    Joined,
    Lost,
    Message,
    NodeLink,
    ProfilersDone,
    RayUp,
    decode,
    encode,
    visit,
)


class Heard(list):
    """Messages a head got, with a bounded wait for one of them."""

    async def until(self, node: str, kind: type[Message]) -> None:
        for _ in range(6000):
            if any(who == node and isinstance(message, kind) for who, message in self):
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"no {kind} of {node} in {list(self)}")


async def head_with(token: str) -> tuple[ControlServer, int, Heard]:
    heard = Heard()
    head = ControlServer(token, lambda node, message: heard.append((node, message)))
    port = free_port()
    await head.listen("127.0.0.1", port)
    return head, port, heard


async def join(port: int, token: str, seconds: float = 60) -> NodeLink:
    deadline = asyncio.get_running_loop().time() + seconds
    return await NodeLink.join("127.0.0.1", port, token, Joined("n2", "10.0.0.2"), deadline)


def test_a_node_joins_talks_listens_and_is_missed():
    async def scene() -> None:
        head, port, heard = await head_with("secret")
        node = await join(port, "secret")
        await heard.until("n2", Joined)
        await node.send(RayUp())
        await heard.until("n2", RayUp)
        orders: list = []
        listening = asyncio.create_task(node.listen(orders.append))
        await head.send(Drain(3.0, "signal"))
        for _ in range(6000):
            if orders:
                break
            await asyncio.sleep(0.01)
        assert orders == [Drain(3.0, "signal")]
        node.close()
        await heard.until("n2", Lost)
        await head.close()
        await asyncio.wait_for(listening, 60)

    asyncio.run(scene())


def test_a_stranger_without_the_token_is_not_heard():
    async def scene() -> None:
        head, port, heard = await head_with("secret")
        with pytest.raises(TimeoutError, match=r"did not answer|did not prove"):
            await join(port, "guess", seconds=0.5)
        assert heard == []
        await head.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    "noise", [b"\n", b"GET / HTTP/1.1\r\n\r\n", b'["a"]\n', b'{"node": 5}\n', b"\xff\xfe\n"]
)
def test_noise_does_no_harm(noise):
    async def scene() -> None:
        head, port, heard = await head_with("secret")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert "nonce" in json.loads(await reader.readline())
        writer.write(noise)
        await writer.drain()
        await asyncio.wait_for(reader.read(), 60)
        writer.close()
        assert heard == []
        node = await join(port, "secret")
        await heard.until("n2", Joined)
        node.close()
        await head.close()

    asyncio.run(scene())


def test_joining_gives_up_at_its_deadline():
    async def scene() -> None:
        with pytest.raises(TimeoutError, match="did not answer"):
            await join(free_port(), "secret", seconds=0.3)

    asyncio.run(scene())


@pytest.mark.parametrize(
    "message", [Drain(3.5, "signal"), Joined("n1", "10.0.0.1", 7), ProfilersDone({"recover": 1.5}), RayUp()]
)
def test_a_message_is_the_same_on_the_other_side(message):
    assert decode(json.loads(encode(message))) == message


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"kind": "Order"},
        {"kind": "Drain", "seconds": "3", "cause": "signal"},
        {"kind": "Drain", "seconds": True, "cause": "signal"},
        {"kind": "Drain", "cause": "signal"},
        {"kind": "ProfilersDone", "phases_s": {"a": "b"}},
        {"kind": ["Drain"]},
    ],
)
def test_a_message_of_another_version_is_none(line):
    assert decode(line) is None


def test_a_node_does_not_follow_a_head_without_the_token():
    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"nonce": "1"}\n')
        await reader.readline()
        writer.write(b'{"proof": "0"}\n' + encode(Drain(0.0, "signal")))
        await writer.drain()

    async def scene() -> None:
        port = free_port()
        server = await asyncio.start_server(impostor, "127.0.0.1", port)
        with pytest.raises(TimeoutError, match="did not prove that it knows the job's token"):
            await join(port, "secret", seconds=0.5)
        server.close()

    asyncio.run(scene())


def test_a_visitor_with_the_token_is_heard_and_is_no_node():
    async def scene() -> None:
        asked: list[Message] = []

        async def take(message: Message) -> bool:
            asked.append(message)
            return len(asked) == 1

        heard = Heard()
        head = ControlServer("secret", lambda node, message: heard.append((node, message)), take)
        port = free_port()
        await head.listen("127.0.0.1", port)
        request = CaptureAsked("{}")
        assert await visit("127.0.0.1", port, "secret", request, 60)
        assert not await visit("127.0.0.1", port, "secret", request, 60)  # heard, and not taken
        assert not await visit("127.0.0.1", port, "guess", request, 60)
        assert not await visit("127.0.0.1", free_port(), "secret", request, 60)
        assert asked == [request, request] and not heard
        await head.send(RayUp())  # nobody to tell
        await head.close()

    asyncio.run(scene())


def test_all_nodes_of_a_large_job_may_come_at_once():
    async def scene() -> None:
        head, port, _ = await head_with("secret")
        links = [socket.socket() for _ in range(512)]
        try:
            for link in links:  # the head accepts none of them meanwhile
                link.settimeout(20)  # the kernel tries one that was dropped again, as much in vain
                link.connect(("127.0.0.1", port))
        finally:
            for link in links:
                link.close()
            await head.close()

    asyncio.run(scene())


def test_a_node_that_takes_nothing_keeps_no_other_waiting():
    async def scene() -> None:
        head, port, heard = await head_with("secret")
        good = await join(port, "secret")
        deadline = asyncio.get_running_loop().time() + 60
        hangs = await NodeLink.join("127.0.0.1", port, "secret", Joined("n3", "10.0.0.3"), deadline)
        hangs._writer.transport.pause_reading()
        got: list[Message] = []
        listening = asyncio.create_task(good.listen(got.append))

        async def tell_all() -> None:
            for _ in range(400):
                await head.send(CaptureAsked("x" * 50_000))
                await asyncio.sleep(0)

        await asyncio.wait_for(tell_all(), 120)
        await heard.until("n3", Lost)
        for _ in range(6000):
            if len(got) == 400:
                break
            await asyncio.sleep(0.01)
        assert len(got) == 400 and not any(node == "n2" and isinstance(said, Lost) for node, said in heard)
        listening.cancel()
        good.close()
        hangs.close()
        await head.close()

    asyncio.run(scene())


HEAD = """
import asyncio, sys
from rlprof_ops.supervisor.control_channel import ControlServer
async def main():
    await ControlServer("secret", lambda node, message: None).listen("127.0.0.1", int(sys.argv[1]))
    print("listens", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def peak_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def test_strangers_who_send_without_end_cost_next_to_nothing():
    port = free_port()
    head = subprocess.Popen([sys.executable, "-c", HEAD, str(port)], stdout=subprocess.PIPE)
    links = []
    try:
        assert head.stdout is not None and head.stdout.readline()
        before = peak_mib(head.pid)
        for _ in range(300):
            link = socket.create_connection(("127.0.0.1", port))
            link.setblocking(False)
            links.append(link)
        until = time.monotonic() + 3
        while time.monotonic() < until:
            for link in links:
                with contextlib.suppress(OSError):
                    link.send(b"x" * (1 << 20))
        assert peak_mib(head.pid) - before < 30
    finally:
        for link in links:
            link.close()
        head.kill()
        head.wait()


def test_of_too_many_strangers_the_oldest_goes_and_a_node_gets_in(monkeypatch):
    monkeypatch.setattr("rlprof_ops.supervisor.control_channel._MOST_STRANGERS", 20)

    async def scene() -> None:
        head, port, heard = await head_with("secret")
        links = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
        node = await join(port, "secret")
        await heard.until("n2", Joined)
        assert len(head._strangers) <= 20
        for reader, _ in links[:30]:
            with contextlib.suppress(OSError):
                await asyncio.wait_for(reader.read(), 5)  # closed by the head, long before its deadline
        node.close()
        await head.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    "hello",
    [
        {"kind": "Visits", "proof": "\ud800", "nonce": "1"},
        {"kind": "Visits", "proof": "0", "nonce": "\udfff"},
        {"kind": "Joined", "node": "\ud800", "ip": "", "proof": "\udc00", "nonce": "1"},
        {"kind": "Joined", "node": ["n"], "ip": {}, "proof": 5, "nonce": None},
    ],
)
def test_half_a_character_is_no_proof_and_costs_no_traceback(hello, caplog, capfd):
    async def scene() -> None:
        head, port, heard = await head_with("secret")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await reader.readline()
        writer.write(json.dumps(hello).encode() + b"\n")
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
        assert heard == []
        await head.close()

    asyncio.run(scene())
    assert caplog.text == ""
    assert capfd.readouterr().err == ""


def test_a_long_line_of_a_node_arrives_whole():
    async def scene() -> None:
        head, port, heard = await head_with("secret")
        node = await join(port, "secret")
        for size in (10, 200_000, 900_000, 3):
            await node.send(Ending("x" * size))
        for _ in range(6000):
            if len(heard) == 5:
                break
            await asyncio.sleep(0.01)
        assert [len(message.cause) for _, message in heard[1:]] == [10, 200_000, 900_000, 3]
        node.close()
        await head.close()

    asyncio.run(scene())
