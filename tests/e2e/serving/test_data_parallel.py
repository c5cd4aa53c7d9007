"""`jaxllm serve --data-parallel-size 2`, with two API servers: shared out, pinned, killed, ended."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import msgspec
import psutil
import pytest
import zmq
from prometheus_client.parser import text_string_to_metric_families

from tests.jaxllm.engine.events.consumer import BlockStored, KVEventBatch
from tests.serving.server_process import SMALL, ServerProcess, running

FLAGS = (
    *SMALL,
    "--data-parallel-size",
    "2",
    "--data-parallel-routing",
    "prefix",
    "--api-server-count",
    "2",
    "--max-restarts",
    "1",
    *("--kv-events-config", '{"enable_kv_cache_events": true, "endpoint": "tcp://*:0", "topic": "kv"}'),
    *("--kv-events-config.replay_endpoint", "tcp://*:0"),
)
BODY = {"prompt": "Once upon a time", "max_tokens": 20, "ignore_eos": True, "temperature": 1, "seed": 7}
SECONDS = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    here = {"VLLM_HOST_IP": "127.0.0.1"}
    with running(tmp_path_factory.mktemp("server") / "log", "demo", *FLAGS, environment=here) as server:
        yield server


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def engines(server: ServerProcess) -> list[psutil.Process]:
    """Its engine processes, in the order of their numbers: that of their start."""
    found = []
    for child in psutil.Process(server.process.pid).children():
        with suppress(psutil.NoSuchProcess):  # one that has just ended
            found += [child] if "jaxllm.serving.ipc.engine_process" in child.cmdline() else []
    return sorted(found, key=psutil.Process.create_time)


def ask(server: ServerProcess, rank: str | None = None, **more: Any) -> httpx.Response:
    """A completion on a connection of its own."""
    headers = {} if rank is None else {"X-data-parallel-rank": rank}
    return httpx.post(f"{server.url}/v1/completions", json={**BODY, **more}, headers=headers, timeout=SECONDS)


def generated(server: ServerProcess) -> list[float]:
    """Tokens that each engine has generated."""
    text = httpx.get(f"{server.url}/metrics", timeout=SECONDS).text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {each.labels["engine"]: each.value for each in samples if each.name == "jaxllm:generation_tokens_total"}
    return [found["0"], found["1"]]


def stored_tokens(source: dict[str, Any]) -> list[tuple[int, int, list[int]]]:
    """By replay: the rank, the group and the tokens of all blocks that an engine has stored."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.RCVTIMEO, int(1000 * SECONDS))
        dealer.connect(source["replay_endpoint"])
        dealer.send_multipart([b"", bytes(8)])
        found = []
        while (frames := dealer.recv_multipart())[2] != b"\xff" * 8:
            batch = msgspec.msgpack.decode(frames[3], type=KVEventBatch)
            for event in batch.events:
                assert isinstance(event, BlockStored)
                assert batch.data_parallel_rank is not None
                assert event.group_idx is not None
                found.append((batch.data_parallel_rank, event.group_idx, event.token_ids))
        return found


def test_each_engine_publishes_what_it_has_cached(server: ServerProcess) -> None:
    prompts = [[5 + rank] * 40 for rank in range(2)]
    for rank, prompt in enumerate(prompts):
        ask(server, str(rank), prompt=prompt, max_tokens=1).raise_for_status()
    sources = httpx.get(f"{server.url}/kv_event_sources", timeout=SECONDS).json()
    assert sources.keys() == {"0", "1"}
    for rank, prompt in enumerate(prompts):
        source = sources[str(rank)]
        assert (source["publisher"], source["topic"], source["data_parallel_rank"]) == ("zmq", "kv", rank)
        until(lambda source=source: len(stored_tokens(source)) > 0)  # type: ignore[misc]
        found = stored_tokens(source)
        assert {(number, group) for number, group, _ in found} == {(rank, 0)}
        # Pages are of 16 tokens, and a step has 16.
        assert [token for _, _, tokens in found for token in tokens][:32] == prompt[:32]


def settled(server: ServerProcess) -> list[float]:
    """The same, when both API servers have told of what was there before."""
    now, then = generated(server), [-1.0, -1.0]
    while now != then:
        time.sleep(1.5)
        now, then = generated(server), now
    return now


def test_each_engine_gives_the_same_tokens(server: ServerProcess) -> None:
    before = settled(server)
    texts = {ask(server, rank).json()["choices"][0]["text"] for rank in ("0", "1", "1", None)}
    assert len(texts) == 1
    until(lambda: sum(generated(server)) == sum(before) + 80)
    grown = [now - then for now, then in zip(generated(server), before, strict=True)]
    assert grown in ([40, 40], [20, 60])


@pytest.mark.parametrize("rank", ["2", "-1", "one", "9" * 50])
def test_an_engine_that_there_is_not(server: ServerProcess, rank: str) -> None:
    answer = ask(server, rank)
    assert answer.status_code == 400
    assert "data" in answer.json()["error"]["message"]


def test_one_that_is_killed_is_missed_by_nobody_else(server: ServerProcess) -> None:
    first, second = engines(server)
    first.send_signal(signal.SIGKILL)
    # The supervisor and both API servers say that they know; from then on requests go to the other one.
    until(lambda: server.log.count("SIGKILL") == 3)
    for _ in range(8):
        assert ask(server).status_code == 200
        assert httpx.get(f"{server.url}/health", timeout=SECONDS).status_code == 200
    until(lambda: len(engines(server)) == 2)
    until(lambda: ask(server, "0").status_code == 200)
    assert second in engines(server)

    def metrics() -> str:
        return httpx.get(f"{server.url}/metrics", timeout=SECONDS).text

    # The process that answers may have heard of it before the one that counts.
    until(lambda: 'jaxllm:engine_restarts_total{engine="0",model_name="demo"} 1.0' in metrics())
    text = metrics()
    assert 'jaxllm:engine_restarts_total{engine="1",model_name="demo"} 0.0' in text


def test_one_that_is_gone_for_good_is_done_without(server: ServerProcess) -> None:
    """Also by an API server that is started only then."""
    text = httpx.get(f"{server.url}/metrics", timeout=SECONDS).text
    assert 'api_server_restarts_total{engine="0",model_name="demo"} 0.0' in text
    (second,) = (engine for engine in engines(server) if engine.create_time() == max(map(created, engines(server))))
    second.send_signal(signal.SIGKILL)
    until(lambda: "there were 1 restarts within" in server.log)
    worker = next(child for child in psutil.Process(server.process.pid).children() if is_worker(child))
    worker.send_signal(signal.SIGKILL)
    until(lambda: "is back" in server.log)
    for _ in range(8):
        assert ask(server).status_code == 200
    assert ask(server, "1").status_code == 200
    assert ask(server, "0").status_code == 503
    assert httpx.get(f"{server.url}/health", timeout=SECONDS).status_code == 200
    assert httpx.post(f"{server.url}/reset_prefix_cache", timeout=SECONDS).status_code == 200


def created(process: psutil.Process) -> float:
    return process.create_time()


def is_worker(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return "jaxllm.serving.server.workers" in process.cmdline()
    return False


def test_it_ends_with_all_of_its_processes(server: ServerProcess) -> None:
    everybody = psutil.Process(server.process.pid).children(recursive=True)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(SECONDS) == 0
    _, alive = psutil.wait_procs(everybody, timeout=SECONDS)
    assert not alive
