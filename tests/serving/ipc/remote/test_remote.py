"""A head and hosts over TCP on this machine, with engines that only echo: carried, ended, refused, missed."""

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
import zmq.auth

from jaxllm import EngineConfig, SamplingParams
from jaxllm.errors import ConfigError, EngineError
from jaxllm.requests.owners import NOBODY
from jaxllm.serving.ipc.client.connection import EngineConnection
from jaxllm.serving.ipc.client.process import EngineProcess
from jaxllm.serving.ipc.messages import Add, AddedSequence, FromEngine, Outputs
from jaxllm.serving.ipc.remote import head as head_module
from jaxllm.serving.ipc.remote.head import Head
from jaxllm.serving.ipc.remote.host import HostSession, Stop
from jaxllm.serving.ipc.remote.messages import CHANNEL, Refused, ToHost
from jaxllm.serving.ipc.remote.security import SECRET, Keys, keys_of
from jaxllm.serving.options.server import ServerOptions
from tests.ports import free_ports

SECONDS = 60.0
ECHO = partial(EngineProcess, module="tests.serving.ipc.remote.echo_engine")


def config_at(port: int, **more: Any) -> EngineConfig:
    options = {"data_parallel_size": 3, "data_parallel_size_local": 1, "data_parallel_rpc_port": port, **more}
    return EngineConfig.from_options({"device": "cpu", **options})


def keys(secret: str, *, headless: bool) -> Keys | None:
    return keys_of(ServerOptions(headless=headless), "127.0.0.1", {SECRET: secret})


class RunningHost(threading.Thread):
    """One session of a host, and how it ended."""

    def __init__(
        self, config: EngineConfig, folder: Path, secret: str = "a secret of some length", given: Keys | None = None
    ) -> None:
        super().__init__(daemon=True)
        folder.mkdir(parents=True)
        self.stop = Stop()
        self.error: ConfigError | None = None
        self.session = HostSession(config, given or keys(secret, headless=True), lambda _: ECHO, folder)
        self.start()

    def run(self) -> None:
        try:
            self.session.run(self.stop)
        except ConfigError as error:
            self.error = error
        finally:
            self.session.close()

    def end(self) -> str:
        """Stop it if it has not been refused; what it was refused for."""
        self.stop.asked = True
        self.join(SECONDS)
        assert not self.is_alive()
        return str(self.error)


class Client:
    """A connection to an engine of the head's."""

    def __init__(self, head: Head, number: int) -> None:
        self.events: Queue[FromEngine | EngineError] = Queue()
        self.connection = EngineConnection(self.events.put, self.events.put, head.launch_of(number))

    def start(self, config: EngineConfig) -> "Client":
        self.connection.start(config)
        return self

    def ask(self, name: str, tokens: np.ndarray) -> None:
        self.connection.send(Add(tokens, [AddedSequence(name, SamplingParams())], 0, None, (), NOBODY))

    def echo(self, tokens: np.ndarray) -> bool:
        """Whether these tokens come back."""
        self.ask("x", tokens)
        message = self.events.get(timeout=SECONDS)
        assert isinstance(message, Outputs), message
        return message.outputs[0].token_ids == tokens.tolist()


@contextmanager
def joined(folder: Path, **more: Any) -> Iterator[tuple[Head, RunningHost, EngineConfig]]:
    config = config_at(free_ports(), **more)
    with Head(config, keys("a secret of some length", headless=False)) as head:
        host = RunningHost(host_config(config), folder / "host")
        yield head, host, config
        host.end()


def host_config(config: EngineConfig, **more: Any) -> EngineConfig:
    parallel = replace(config.parallel, data_parallel_size_local=2, data_parallel_start_rank=1)
    return replace(config, parallel=replace(parallel, **more))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_messages_are_carried_and_ends_are_told(tmp_path: Path) -> None:
    with joined(tmp_path) as (head, host, config):
        one, two = (Client(head, number).start(config) for number in (1, 2))
        large = np.arange(400_000, dtype=np.int32)  # more than what is shared on one machine
        assert all(client.echo(np.arange(5, dtype=np.int32)) for client in (one, two, one))
        assert two.echo(large)
        # More at once than may be under way.
        for number in range(1500):
            one.ask(str(number), np.arange(3, dtype=np.int32))
        names: list[str] = []
        while len(names) < 1500:
            message = one.events.get(timeout=SECONDS)
            assert isinstance(message, Outputs)
            names += [each.request_id for each in message.outputs]
        assert names == [str(number) for number in range(1500)]
        one.ask("die", np.arange(1, dtype=np.int32))
        error = one.events.get(timeout=SECONDS)
        assert isinstance(error, EngineError)
        assert "exit code 7" in str(error)
        assert two.echo(large[:1000]), "the other engine goes on"
        again = Client(head, 1).start(config)
        assert again.echo(large[:10])
        again.connection.close()
        host.end()
        lost = two.events.get(timeout=SECONDS)
        assert "has disconnected" in str(lost)
        assert not head.has_place(2)
        # The engine waits for the host, which comes back.
        back = Client(head, 2)
        starting = threading.Thread(target=back.start, args=(config,))
        starting.start()
        next_host = RunningHost(host_config(config), tmp_path / "next")
        starting.join(SECONDS)
        assert back.echo(large[:10])
        back.connection.close()
        next_host.end()


def test_a_host_that_is_silent_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_module, "SILENCE_SECONDS", 1.0)
    with joined(tmp_path) as (head, host, config):
        client = Client(head, 1).start(config)
        host.session._watch = lambda: time.sleep(2)  # type: ignore[method-assign]
        error = client.events.get(timeout=SECONDS)
        assert "disappeared" in str(error)
        host.join(SECONDS)
        assert host.error is None, "it is told to join again"
        other = RunningHost(host_config(config), tmp_path / "other")
        until(lambda: head.has_place(1))
        # Its connection breaks.
        other.session._relay.call(lambda: other.session._wire.disconnect(other.session._address))
        until(lambda: not head.has_place(1))
        other.end()


def test_who_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with joined(tmp_path) as (head, _, config):
        client = Client(head, 1).start(config)
        other = host_config(config, data_parallel_start_rank=7)
        wrong_model = replace(other, model=replace(other.model, seed=3))
        for number, (given, secret, message) in enumerate((
            (wrong_model, "a secret of some length", "seed is 3 on this host, and 0 on the server"),
            (host_config(config, data_parallel_start_rank=0), "a secret of some length", "other hosts must use 1"),
            (other, "another secret of that length", "rejects the secret or the keys"),
        )):  # fmt: skip
            refused = RunningHost(given, tmp_path / str(number), secret)
            refused.join(SECONDS)
            assert message in refused.end()
        noise(config.parallel.data_parallel_rpc_port)
        half_open = socket.create_connection(("127.0.0.1", config.parallel.data_parallel_rpc_port))
        assert client.echo(np.arange(5, dtype=np.int32))
        half_open.close()
        client.connection.close()
    assert "a wrong secret, or is not jaxllm" in caplog.text


def noise(port: int) -> None:
    """Somebody who speaks another language, or none, or says that much is to come."""
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00"
    huge = greeting + b"NULL".ljust(20, b"\0") + bytes(32) + b"\x02" + struct.pack("!Q", 1 << 62)
    for data in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), greeting, huge, b""):
        with socket.create_connection(("127.0.0.1", port)) as strange, suppress(OSError):
            strange.sendall(data)
            strange.settimeout(0.1)
            strange.recv(100)


def test_messages_that_make_no_sense(tmp_path: Path) -> None:
    """From somebody who may connect: on loopback without a secret."""
    config = config_at(free_ports())
    with Head(config, None) as head:
        context = zmq.Context()
        dealer = context.socket(zmq.DEALER)
        dealer.connect(f"tcp://127.0.0.1:{config.parallel.data_parallel_rpc_port}")
        control = CHANNEL.pack(0)
        old = msgspec.msgpack.encode({"type": "Join", "version": "0.0.1", "places": 3})
        for frames, kind, reason in (
            ([b""], "for good", "not from a host of engines"),
            ([b"x", b"y", b"z"], "for good", "not from a host of engines"),
            ([control, os.urandom(100)], "for good", "not from a host of engines"),
            ([control, old], "for good", "this host has jaxllm 0.0.1"),
            ([control, msgspec.msgpack.encode({"type": "Alive"})], "join again", "no longer knows this host"),
        ):
            dealer.send_multipart(frames)
            assert dealer.poll(10_000), frames
            answer: Any = msgspec.msgpack.decode(dealer.recv_multipart()[1], type=ToHost)
            assert isinstance(answer, Refused)
            assert answer.kind == kind
            assert reason in answer.reason
        dealer.send_multipart([CHANNEL.pack(12345), b"for nobody"])
        # One frame of more than is ever read: the connection ends, the head goes on.
        dealer.send_multipart([control, bytes((1 << 28) + 1)])
        time.sleep(0.5)
        assert not head.has_place(1)
        dealer.close(linger=0)
        context.term()
        with pytest.raises(ConfigError, match="cannot listen for engines on"):
            Head(config, None)


def test_keys_of_the_operators(tmp_path: Path) -> None:
    """Only hosts whose keys the head has may join."""
    for name in ("head", "known", "unknown"):
        zmq.auth.create_certificates(tmp_path, name)
    peers = tmp_path / "peers"
    peers.mkdir()
    (tmp_path / "known.key").rename(peers / "known.key")

    def keys_from(name: str, peers: Path, *, headless: bool) -> Keys | None:
        options = ServerOptions(
            headless=headless,
            data_parallel_curve_key=f"{tmp_path}/{name}.key_secret",
            data_parallel_curve_peers=str(peers),
        )
        return keys_of(options, "0.0.0.0", {})

    config = config_at(free_ports())
    with Head(config, keys_from("head", peers, headless=False)) as head:
        for name in ("unknown", "known"):
            given = keys_from(name, tmp_path / "head.key", headless=True)
            host = RunningHost(host_config(config), tmp_path / name, given=given)
            if name == "unknown":
                host.join(SECONDS)
                assert "rejects the secret or the keys" in host.end()
                assert not head.has_place(1)
            else:
                until(lambda: head.has_place(1))
                client = Client(head, 1).start(config)
                assert client.echo(np.arange(5, dtype=np.int32))
                client.connection.close()
                assert host.end() == "None"
