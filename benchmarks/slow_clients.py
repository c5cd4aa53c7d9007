"""How much slow and idle clients cost others: first tokens compared with 1,000 connections that send a byte a second.

    scripts/bench slow_clients --connections 1000 --seconds 20

Starts a server of the demo model, or takes a running one (`--url`), and measures the time to the first token of
streams one after the other: alone, then alongside connections that send a request's headers, a body, or nothing at
all, a
byte a second each. Prints median and 95th percentile of each case, and how many of the slow connections the server has
closed by the end.
"""

import argparse
import json
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from benchmarks.shared.running_server import RunningServer

BODY = {"prompt": "Once upon a time", "max_tokens": 4, "ignore_eos": True, "stream": True}
HEADERS = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-Slow: " + b"x" * 4000
BEGUN = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 4000\r\n"
CASES = {
    "nothing": (b"", b""),
    "headers": (b"", HEADERS),
    "body": (BEGUN + b"%b\r\n", b'{"prompt":"' + b"x" * 4000),
}
"""What slow clients send at once, and what by the byte."""


class SlowClients(threading.Thread):
    """Connections that send a byte a second, opened again when the server closes them."""

    def __init__(self, address: tuple[str, int], number: int, at_once: bytes, by_byte: bytes) -> None:
        super().__init__(daemon=True)
        self._address, self._at_once, self._by_byte = address, at_once, by_byte
        self._open = [self._connect() for _ in range(number)]
        self.closed = 0
        self.ended = threading.Event()
        self.start()

    def run(self) -> None:
        """Send until told to end."""
        place = 0
        while not self.ended.wait(1.0):
            for index, connection in enumerate(self._open):
                if self.ended.is_set():
                    break
                try:
                    if self._by_byte:
                        connection.send(self._by_byte[place % len(self._by_byte) :][:1])
                    if not connection.recv(4096):
                        raise ConnectionResetError
                except BlockingIOError:
                    continue
                except OSError:
                    self.closed += 1
                    connection.close()
                    self._open[index] = self._connect()
            place += 1
        for connection in self._open:
            connection.close()

    def _connect(self) -> socket.socket:
        made = socket.create_connection(self._address, timeout=30)
        if self._at_once:
            made.sendall(self._at_once)
        made.setblocking(False)
        return made


def first_tokens(client: httpx.Client, seconds: float) -> list[float]:
    """Milliseconds until the first event of each of many streams."""
    found = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        with client.stream("POST", "/v1/completions", json=BODY) as response:
            events = response.iter_raw()
            next(events)
            found.append((time.perf_counter() - began) * 1e3)
            for _ in events:
                pass
        time.sleep(0.01)
    return found


def row(name: str, milliseconds: list[float], closed: int | None, alone: float | None) -> None:
    """Print a line of the table."""
    median, high = statistics.median(milliseconds), statistics.quantiles(milliseconds, n=20)[-1]
    ratio = "" if alone is None else f"{median / alone:.2f} x"
    shown = "" if closed is None else str(closed)
    print(f"{name:<10} {len(milliseconds):>8} {median:>10.1f} {high:>10.1f} {ratio:>8} {shown:>8}", flush=True)


@contextmanager
def served(arguments: argparse.Namespace) -> Iterator[str]:
    """The URL of the server to be measured."""
    if arguments.url:
        yield arguments.url
        return
    key = ["--api-key", arguments.key] if arguments.key else []
    with tempfile.TemporaryDirectory() as folder:
        flags = ["demo", "--disable-log-stats", *key, *arguments.serve]
        with RunningServer(flags, log=Path(folder) / "log") as server:
            yield server.base_url


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="measure this server instead of starting one")
    parser.add_argument("--key", help="API key of the server")
    parser.add_argument("--connections", type=int, default=1000, help="slow connections (default 1000)")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds for each case (default 20)")
    parser.add_argument("--json", action="store_true", help="print the medians as JSON at the end")
    parser.add_argument("serve", nargs="*", help="flags for the server, after --")
    arguments = parser.parse_args()
    with served(arguments) as url:
        address = (urlsplit(url).hostname or "", urlsplit(url).port or 80)
        headers = {"Authorization": f"Bearer {arguments.key}"} if arguments.key else {}
        key = f"Authorization: Bearer {arguments.key}\r\n".encode() if arguments.key else b""
        medians: dict[str, float] = {}
        with httpx.Client(base_url=url, headers=headers, timeout=120) as client:
            first_tokens(client, 2.0)
            print(f"{'beside':<10} {'streams':>8} {'median ms':>10} {'95 % ms':>10} {'':>8} {'closed':>8}")
            alone = first_tokens(client, arguments.seconds)
            medians["alone"] = statistics.median(alone)
            row("alone", alone, None, None)
            for name, (at_once, by_byte) in CASES.items():
                begun = at_once.replace(b"%b", key) if at_once else b""
                slow = SlowClients(address, arguments.connections, begun, by_byte)
                found = first_tokens(client, arguments.seconds)
                slow.ended.set()
                slow.join()
                medians[name] = statistics.median(found)
                row(name, found, slow.closed, medians["alone"])
        if arguments.json:
            print(json.dumps(medians))


if __name__ == "__main__":
    main()
