"""What goes wrong between two engines costs time, and no request: its prompt is computed, and that is counted."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq

from jaxllm.engine.engine import Engine
from jaxllm.engine.transfer import wire
from jaxllm.requests.request import Request
from tests.e2e.driving import request, run
from tests.e2e.test_host_tier import PARAMS, prompts
from tests.e2e.transfer.pairs import FOR_ANOTHER, consumer, drive, nothing_left, pair, producer, with_params

Params = dict[str, Any]


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[Engine, Engine]]:
    with pair() as found:
        yield found


def one(name: str = "one", number: int = 0) -> Request:
    return request(name, prompts()[number], **PARAMS)


def expected(engine: Engine, number: int = 0) -> list[int]:
    alone = with_params(one(number=number), None, skip_reading_prefix_cache=True)
    tokens = run(engine, [alone])["one"].token_ids
    engine.reset_prefix_cache()
    return tokens


def begun(first: Engine, given: Request) -> Params:
    """What the first engine tells of a prompt, once it is on the host."""
    told: Params = drive(first, [with_params(given, FOR_ANOTHER, max_tokens=1)])["told"][given.request_id]
    assert first.host_tier is not None
    exchange = first.host_tier.exchange
    while exchange is not None and exchange.is_copying:
        first.copy_while_idle()
        time.sleep(0.001)
    return told


def check(second: Engine, told: Params, reason: str, beside: Callable[[], object] = lambda: None) -> None:
    """The prompt is computed, and it is counted why."""
    tokens = expected(second)
    before = second.stats().transfer
    found = drive(second, [with_params(one(), told)], beside=beside)
    assert found["answers"]["one"].token_ids == tokens
    after = second.stats().transfer
    assert getattr(after, reason) == getattr(before, reason) + 1
    assert after.tokens == before.tokens


def test_nobody_listens(engines: tuple[Engine, Engine]) -> None:
    first, second = engines
    told = begun(first, one())
    with zmq.Context() as context, context.socket(zmq.ROUTER) as free:
        free.bind("tcp://127.0.0.1:*")
        port = int(free.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
    check(second, {**told, "remote_port": port}, "unreachable")
    # The lease is still there, and can be fetched.
    tokens = expected(second)
    assert drive(second, [with_params(one(), told)])["answers"]["one"].token_ids == tokens
    nothing_left(first, second)


def test_a_lease_that_is_gone(engines: tuple[Engine, Engine]) -> None:
    first, second = engines
    told = begun(first, one())
    check(second, {**told, "remote_request_id": "0" * 32}, "gone")
    check(second, {**told, "remote_engine_id": "another"}, "gone")
    told = begun(first, one())
    assert first.host_tier is not None
    leases = first.host_tier._tier.leases
    assert leases is not None
    for lease in leases._leases.values():
        lease.deadline = 0.0
    before = first.stats().transfer.expired
    first.copy_while_idle()
    assert first.stats().transfer.expired == before + 1
    check(second, told, "gone")
    nothing_left(first, second)


def test_damaged_pages(engines: tuple[Engine, Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """In the memory of the first engine, where its own check finds it; and on the way, where only the second can."""
    first, second = engines
    assert first.host_tier is not None
    host, leases = first.host_tier._tier.host, first.host_tier._tier.leases
    assert leases is not None
    told = begun(first, one())
    lease = leases._leases[told["remote_request_id"]]
    copy = next(iter(lease.copies.values()))
    host._memory[copy.slots[0], 5] ^= 1
    check(second, told, "gone")
    nothing_left(first, second)
    first.reset_prefix_cache()
    told = begun(first, one())

    def read(copy: Any, into: Any) -> bool:
        into[:] = host._memory[copy.slots[0]][: len(into)] + 1
        return True

    with monkeypatch.context() as patched:
        patched.setattr(host, "read", read)
        check(second, told, "damaged")
    nothing_left(first, second)


@contextmanager
def peer(answer: Callable[[Any, list[bytes]], None]) -> Iterator[int]:
    """Something at a port that does as it likes with messages."""
    context = zmq.Context()
    socket, ends = context.socket(zmq.ROUTER), threading.Event()
    socket.setsockopt(zmq.RCVTIMEO, 20)
    port = socket.bind_to_random_port("tcp://127.0.0.1")

    def serve() -> None:
        while not ends.is_set():
            try:
                answer(socket, socket.recv_multipart())
            except zmq.Again:
                continue

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield port
    finally:
        ends.set()
        thread.join()
        context.destroy(0)


def test_a_peer_that_hangs_delays_only_its_own_requests() -> None:
    """It takes what comes and says nothing; others are served meanwhile."""
    second = consumer(transfer={"kv_connector_extra_config": {"fetch_timeout": 3, "connect_timeout": 1}})
    try:
        with peer(lambda socket, frames: None) as port:
            told = {**FOR_ANOTHER, "do_remote_decode": False, "do_remote_prefill": True, "remote_host": "127.0.0.1",
                    "remote_port": port, "remote_request_id": "x", "remote_block_ids": [[1]]}  # fmt: skip
            tokens = expected(second)
            others = [request(f"other {number}", prompts()[1], **PARAMS) for number in range(3)]
            ends: list[str] = []
            for each in [with_params(one(), told), *others]:
                second.add_request(each)
            found: dict[str, list[int]] = {}
            while second.has_unfinished_requests():
                for output in second.step():
                    found.setdefault(output.request_id, []).extend(output.token_ids)
                    ends += [output.request_id] if output.finished else []
            assert ends[-1] == "one"
            assert found["one"] == tokens
            assert second.stats().transfer.unreachable == 1
            # From then on it is not even asked, for a while.
            check(second, told, "unreachable")
        welcomed = [0]

        def greets_and_hangs(socket: Any, frames: list[bytes]) -> None:
            message = wire.to_producer.decode(frames[1])
            if isinstance(message, wire.Hello):
                welcomed[0] += 1
                socket.send_multipart([frames[0], wire.encode(wire.Welcome("it", message.form))])

        with peer(greets_and_hangs) as port:
            check(second, {**told, "remote_port": port}, "timeout")
            assert welcomed == [1]

        def says(reply: bytes, socket: Any, frames: list[bytes]) -> None:
            socket.send_multipart([frames[0], reply])

        for reply in (b"\xc1", b"", wire.encode(wire.Answer(1, [7])), b"x" * 100_000):
            with peer(partial(says, reply)) as port:
                check(second, {**told, "remote_port": port}, "unreachable" if reply[:1] == b"\x93" else "damaged")
        second.scheduler.check_integrity()
    finally:
        second.close()


def test_another_fingerprint_is_refused() -> None:
    first, second = producer(kv_cache_dtype="int8"), consumer()
    try:
        check(second, begun(first, one()), "refused")
        assert first.stats().transfer.refused_peers == 1
        assert first.stats().transfer.sent_bytes == 0
        nothing_left(first, second)
    finally:
        first.close()
        second.close()


def test_foreign_messages_harm_nobody(engines: tuple[Engine, Engine]) -> None:
    """Whatever comes to the port of a producer, the next engine is served."""
    first, second = engines
    told = begun(first, one())
    rng = np.random.default_rng(0)
    hello = wire.encode(wire.Hello(1, b"x" * 32, wire.PageForm("f", (1,), 0, 1, 1, 0)))
    odd = [
        [b""], [b"\xc1"], [b"\x81" * 500], [rng.bytes(1000)], [b"a"] * 50, [b"x" * (1 << 20)], [hello, b""], [hello],
        [msgspec.msgpack.encode(["Ask", 1, "name", [[b"", -1]]])],
        [msgspec.msgpack.encode(["Ask", 1, "name", [1] * 9999])],
        [wire.encode(wire.Ask(1, told["remote_request_id"], [(b"", 0)]))],
        [wire.encode(wire.Release("another"))],
    ]  # fmt: skip
    with zmq.Context() as context, context.socket(zmq.DEALER) as foreign:
        foreign.linger = 0
        foreign.connect(f"tcp://127.0.0.1:{told['remote_port']}")
        for frames in odd:
            foreign.send_multipart(frames)
        # The last ones have answers, since nobody has said hello properly.
        foreign.rcvtimeo = 60_000
        assert isinstance(wire.to_consumer.decode(foreign.recv()), wire.Refused)
        tokens = expected(second)
        before = second.stats().transfer.tokens
        assert drive(second, [with_params(one(), told)])["answers"]["one"].token_ids == tokens
        assert second.stats().transfer.tokens > before
    assert first.stats().transfer.foreign >= 5
    nothing_left(first, second)


def test_the_policy_is_to_fail() -> None:
    second = consumer(transfer={"kv_load_failure_policy": "fail"})
    told = {**FOR_ANOTHER, "do_remote_decode": False, "do_remote_prefill": True, "remote_host": "127.0.0.1",
            "remote_port": 1, "remote_request_id": "x", "remote_block_ids": [[1]]}  # fmt: skip
    try:
        refused = drive(second, [with_params(one(), told)])["told"]["one"]
        assert refused["is_fault"]
        assert "does not answer" in refused["refusal"]
        second.scheduler.check_integrity()
    finally:
        second.close()
