"""Clients of a service, in a process of their own: a JSON plan on the standard input, JSON results on the output.

    python -m benchmarks.load_generator < plan.json

A plan is {"port", "path", "seconds", "loads": [...]}. All loads run at once for `seconds`:

- {"kind": "closed", "clients": n, "bodies": [...]}: each client sends its next request when it has its answer;
- {"kind": "open", "rate": r, "bodies": [...]}: requests begin at fixed times, whatever happens to the earlier ones, and
  a latency counts from the time at which the request should have begun.

Requests are made before the clock starts. The answers to equal bodies are compared byte by byte. The result of a load
is {"latencies": [...], "statuses": {...}, "changed": n, "seconds": s, "own": o}, where `changed` counts answers that
differ from the first one to the same body. `own` is the mean of this process' processor seconds between a request and
its answer; it has a meaning with one client only. The plan's result also has "cpu", all processor seconds of this
process.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections import Counter
from typing import Any


class Connection:
    """A connection that is kept open, and opened again if the service closes it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a request; return the status and the body, or status 0 if there is no answer."""
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=2**26)
            reader, writer = self._streams
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
            body = await reader.readexactly(length)
            if b"connection: close" in head:
                self.close()
            return int(head[9:12]), body
        except (OSError, asyncio.IncompleteReadError):
            self.close()
            return 0, b""

    def close(self) -> None:
        """Close the connection, if it is open."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class Load:
    """What the clients of one load have got."""

    def __init__(self, plan: dict[str, Any], load: dict[str, Any]) -> None:
        self._port, self._seconds, self._load = plan["port"], plan["seconds"], load
        self._requests = [as_request(plan["path"], body) for body in load["bodies"]]
        self._first: dict[int, bytes] = {}
        self._free: list[Connection] = []
        self.latencies: list[float] = []
        self.statuses: Counter[int] = Counter()
        self.changed, self.ended, self.own = 0, 0.0, 0.0

    async def run(self, start: float) -> dict[str, Any]:
        """Send requests until the time is over, and wait for the last answers."""
        if self._load["kind"] == "closed":
            clients = self._load["clients"]
            await asyncio.gather(*(self._closed(start, first, clients) for first in range(clients)))
        else:
            await self._open(start)
        return {
            "latencies": self.latencies,
            "statuses": dict(self.statuses),
            "changed": self.changed,
            "seconds": self.ended - start,
            "own": self.own / max(1, sum(self.statuses.values())),
        }

    async def _closed(self, start: float, first: int, step: int) -> None:
        connection, number = Connection(self._port), first
        while (now := time.perf_counter()) < start + self._seconds:
            await self._one(connection, number, now)
            number += step
        connection.close()

    async def _open(self, start: float) -> None:
        tasks = []
        for number in range(int(self._seconds * self._load["rate"])):
            due = start + number / self._load["rate"]
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(self._pooled(number, due)))
        await asyncio.gather(*tasks)

    async def _pooled(self, number: int, due: float) -> None:
        connection = self._free.pop() if self._free else Connection(self._port)
        await self._one(connection, number, due)
        self._free.append(connection)

    async def _one(self, connection: Connection, number: int, began: float) -> None:
        index = number % len(self._requests)
        before = time.thread_time()
        status, body = await connection.ask(self._requests[index])
        self.ended = time.perf_counter()
        self.own += time.thread_time() - before
        self.statuses[status] += 1
        if status == 200:
            self.latencies.append(self.ended - began)
            self.changed += self._first.setdefault(index, body) != body


def as_request(path: str, body: Any) -> bytes:
    """Return the bytes of a request."""
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def main() -> None:
    """Run the plan of the standard input."""
    plan = json.load(sys.stdin)
    loads = [Load(plan, load) for load in plan["loads"]]
    gc.disable()
    cpu, start = time.process_time(), time.perf_counter()
    results = await asyncio.gather(*(load.run(start) for load in loads))
    print(json.dumps({"loads": results, "cpu": time.process_time() - cpu}))


if __name__ == "__main__":
    asyncio.run(main())
