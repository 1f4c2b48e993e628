"""The control channel: a node with the token joins, one without does not, a broken link is noticed."""

from __future__ import annotations

import asyncio
import json

import pytest

from rlprof_ops.host.ports import free_port
from rlprof_ops.supervisor.control_channel import Head, Node


class Heard(list):
    """Messages a head got, with a bounded wait for one of them."""

    async def until(self, node: str, state: str) -> None:
        for _ in range(200):
            if any(who == node and message.get("state") == state for who, message in self):
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"no {state} of {node} in {list(self)}")


async def head_with(token: str) -> tuple[Head, int, Heard]:
    heard = Heard()
    head = Head(token, lambda node, message: heard.append((node, message)))
    port = free_port()
    await head.listen("127.0.0.1", port)
    return head, port, heard


async def join(port: int, token: str, seconds: float = 5) -> Node:
    deadline = asyncio.get_running_loop().time() + seconds
    return await Node.join("127.0.0.1", port, token, {"node": "n2", "ip": "10.0.0.2"}, deadline)


def test_a_node_joins_talks_listens_and_is_missed():
    async def scene() -> None:
        head, port, heard = await head_with("secret")
        node = await join(port, "secret")
        await heard.until("n2", "joined")
        await node.tell({"state": "ray_up"})
        await heard.until("n2", "ray_up")
        orders: list = []
        listening = asyncio.create_task(node.listen(orders.append))
        await head.tell({"do": "drain", "seconds": 3})
        for _ in range(100):
            if orders:
                break
            await asyncio.sleep(0.01)
        assert orders == [{"do": "drain", "seconds": 3}]
        node.close()
        await heard.until("n2", "lost")
        await head.close()
        await asyncio.wait_for(listening, 5)

    asyncio.run(scene())


def test_a_stranger_without_the_token_is_not_heard():
    async def scene() -> None:
        head, port, heard = await head_with("secret")
        node = await join(port, "guess")
        await node.tell({"state": "failed", "reason": "stop everything"})
        await asyncio.wait_for(node.listen(lambda message: None), 5)  # the head hangs up
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
        await asyncio.wait_for(reader.read(), 15)
        writer.close()
        assert heard == []
        node = await join(port, "secret")
        await heard.until("n2", "joined")
        node.close()
        await head.close()

    asyncio.run(scene())


def test_joining_gives_up_at_its_deadline():
    async def scene() -> None:
        with pytest.raises(TimeoutError, match="did not answer"):
            await join(free_port(), "secret", seconds=0.3)

    asyncio.run(scene())
