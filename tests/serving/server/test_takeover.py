"""One server after another serves an address, and no client notices."""

import asyncio
import json
import socket
import ssl
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from jaxllm.errors import ConfigError
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.server import takeover
from jaxllm.serving.server.listener import Listener
from jaxllm.serving.server.takeover import Handover, Predecessor
from tests.serving.certificates import make_certificate
from tests.serving.server_process import LONG, SMALL, ServerProcess, Stream, running

pytestmark = pytest.mark.skipif(not hasattr(socket, "SO_PEERCRED"), reason="only on Linux")
SECONDS = 120.0


def at(port: int, *, taking: bool = True) -> ServerOptions:
    return ServerOptions(host="127.0.0.1", port=port, takeover=taking)


async def taken(port: int) -> Listener:
    return await asyncio.to_thread(Listener, at(port))


async def test_a_successor_gets_the_queue_of_connections_and_the_name() -> None:
    left = asyncio.Event()
    with Listener(at(0)) as old:
        old.socket.listen()
        assert old.port
        async with Handover(old.socket, left.set):
            # One that ends before it is ready changes nothing.
            (await taken(old.port)).close()
            new = await taken(old.port)
            with new, socket.create_connection(("127.0.0.1", old.port)) as client:
                assert not left.is_set()
                await new.take_over()
                await asyncio.wait_for(left.wait(), 5)
                old.socket.close()
                async with Handover(new.socket, left.set):
                    accepted, _ = new.socket.accept()
                    with accepted:
                        accepted.sendall(b"x")
                        assert client.recv(1) == b"x"
                    third = await taken(new.port or 0)
                    third.close()


async def test_only_a_server_of_the_same_user(monkeypatch: pytest.MonkeyPatch) -> None:
    found = takeover._peer_of

    def foreign(channel: socket.socket) -> tuple[int, int]:
        return found(channel)[0] + 1, found(channel)[1]

    with Listener(at(0)) as old:
        assert old.port
        async with Handover(old.socket, pytest.fail):
            with monkeypatch.context() as patched:
                patched.setattr(takeover, "_peer_of", foreign)
                with pytest.raises(ConfigError, match=r"another user's|does not give its socket"):
                    await taken(old.port)
            (await taken(old.port)).close()


def test_without_a_server_it_starts_as_usual(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert Predecessor.find(at(port)) is None
    with Listener(at(port)) as listener:
        assert listener.port == port
    path = tmp_path / "socket"
    with Listener(ServerOptions(uds=str(path), takeover=True)):
        assert path.exists()
    assert not path.exists()


async def test_the_file_of_a_unix_socket_goes_over_too(tmp_path: Path) -> None:
    options = ServerOptions(uds=str(tmp_path / "socket"), takeover=True)
    with Listener(options) as old:
        async with Handover(old.socket, old.hand_over):
            new = await asyncio.to_thread(Listener, options)
            await new.take_over()
    assert (tmp_path / "socket").exists()
    new.close()
    assert not (tmp_path / "socket").exists()


class Load(threading.Thread):
    """A client that asks again and again, on one connection or on a new one each time."""

    def __init__(self, url: str, trusted: ssl.SSLContext, *, keeps: bool) -> None:
        super().__init__(daemon=True)
        http = openai.DefaultHttpxClient(verify=trusted, timeout=SECONDS)
        self._client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http)
        self._keeps = keeps
        self.over = threading.Event()
        self.answers: Counter[str] = Counter()
        self.start()

    def run(self) -> None:
        headers = {} if self._keeps else {"Connection": "close"}
        while not self.over.is_set():
            try:
                answer = self._client.completions.create(
                    model="demo", prompt="The cat", max_tokens=3, temperature=0, extra_headers=headers
                )
            except openai.APIError as error:
                self.answers[f"{error!r}: {error.__cause__!r}"] += 1
            else:
                self.answers[answer.choices[0].text] += 1
            time.sleep(0.05)
        self._client.close()


def end_of(stream: Stream) -> str:
    found = stream.rest()
    assert not stream.cut_off
    assert found[-1] == b"[DONE]", found[-1]
    reason: str = json.loads(found[-2])["choices"][0]["finish_reason"]
    return reason


SEVERAL = ("--api-server-count", "2")
PATIENT = (*SMALL, "--shutdown-timeout", "100")


def serial_of(server: ServerProcess, trusted: ssl.SSLContext) -> str:
    """The serial number of the certificate with which a server greets."""
    with (
        socket.create_connection(("127.0.0.1", server.port), SECONDS) as plain,
        trusted.wrap_socket(plain, server_hostname="localhost") as tls,
    ):
        found: Any = tls.getpeercert()
        return str(found["serialNumber"])


@pytest.mark.parametrize(
    ("before", "after", "tls"),
    [
        (SEVERAL, (), True),
        pytest.param(SEVERAL, (), False, marks=pytest.mark.exhaustive),
        pytest.param((), SEVERAL, False, marks=pytest.mark.exhaustive),
    ],
    ids=["several, then one, over TLS", "several, then one", "one, then several"],
)
def test_a_server_follows_another_under_load(
    tmp_path: Path, before: tuple[str, ...], after: tuple[str, ...], tls: bool
) -> None:
    """Nobody is refused or cut, and streams go on to their ends.

    Over TLS the successor has another certificate, with which it greets new connections.
    """
    trusted = ssl.create_default_context()
    if tls:
        (old, new) = (make_certificate(tmp_path / name) for name in ("old", "new"))
        before = (*before, "--ssl-certfile", old[0], "--ssl-keyfile", old[1])
        after = (*after, "--ssl-certfile", new[0], "--ssl-keyfile", new[1])
        for certificate, _ in (old, new):
            trusted.load_verify_locations(certificate)
    with running(tmp_path / "first", *PATIENT, *before) as first:
        url = f"{'https' if tls else 'http'}://127.0.0.1:{first.port}"
        serials = [serial_of(first, trusted)] if tls else []
        with httpx.Client(base_url=url, verify=trusted) as client:
            clients = [Load(url, trusted, keeps=number % 2 == 0) for number in range(4)]
            stream = Stream(client, LONG)
            place = ("--port", str(first.port), "--takeover")
            with running(tmp_path / "second", *PATIENT, *after, *place) as second:
                assert end_of(stream) == "length"
                assert first.end() == 0, first.log
                stream = Stream(client, {**LONG, "n": 1})
                assert end_of(stream) == "length"
                serials += [serial_of(second, trusted)] if tls else []
                for each in clients:
                    each.over.set()
                    each.join(SECONDS)
                assert f"process {second.process.pid} takes over" in first.log
    assert len(set(serials)) == len(serials)
    total = sum((each.answers for each in clients), Counter[str]())
    assert len(total) == 1, total
    assert total.total() > 20
    for server in (first, second):
        assert "Traceback" not in server.log
