"""`jaxllm serve --disaggregate 1:2`: the same answers as of one server, prefixes, deaths, aborts, the end."""

import asyncio
import json
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpx
import openai
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.serving.server_process import SMALL, ServerProcess

SECONDS = 240.0
LEAST = 48
PAGES = 100
FLAGS = (
    *("demo", "--disaggregate", "1:2", *SMALL, "--num-gpu-blocks-override", str(PAGES), "--max-restarts", "9"),
    *("--max-queued-requests", "4"),
    *("--min-transfer-tokens", str(LEAST), "--health-interval", "0.2"),
)
WORDS = "Once upon a time there was a very small dragon who lived in a {} house by the sea. "


def story(name: str, repeats: int = 5) -> str:
    """A text of some 100 tokens that shares no block with another one."""
    return f"{name}: " + WORDS.format(name) * repeats


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class Fleet:
    """A fleet and its router."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        until(lambda: "routing to" in process.log or process.process.poll() is not None)
        found = re.search(r"routing to 1 prefill server and 2 decode servers; OpenAI API at (\S+)", process.log)
        assert found is not None, process.log
        self.url = found[1]
        self.http = httpx.Client(base_url=self.url, timeout=SECONDS)
        self.direct = {each["name"]: httpx.Client(base_url=each["url"], timeout=SECONDS) for each in self.states()}

    def states(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.http.get("/fleet").json()["servers"]
        return found

    def state(self, name: str) -> dict[str, Any]:
        return next(each for each in self.states() if each["name"] == name)

    def count(self, name: str, **labels: str) -> float:
        """The sum of a metric of the router."""
        families = text_string_to_metric_families(self.http.get("/metrics").text)
        samples = [sample for family in families for sample in family.samples if sample.name == f"jaxllm:{name}"]
        return sum(each.value for each in samples if labels.items() <= each.labels.items())

    def complete(self, prompt: str, **more: Any) -> dict[str, Any]:
        return answer(self.http, prompt, **more)

    def server(self, name: str) -> psutil.Process:
        """The process of a server."""
        port = int(self.state(name)["url"].rpartition(":")[2])
        children = psutil.Process(self.process.process.pid).children()
        return next(each for each in children if any(c.laddr.port == port for c in each.net_connections()))

    def num_expired(self) -> float:
        """Prompts whose pages nobody has fetched or released."""
        (line,) = (
            each
            for each in self.direct["prefill-0"].get("/metrics").text.splitlines()
            if each.startswith("jaxllm:nixl_num_kv_expired_reqs_total{")
        )
        return float(line.rpartition(" ")[2])

    def memory(self) -> int:
        """Bytes that all its processes have of their own."""
        whole = psutil.Process(self.process.process.pid)
        return sum(each.memory_full_info().uss for each in (whole, *whole.children(recursive=True)))

    def wait_until_idle(self) -> None:
        """Wait until no server of the fleet has anything to do, holds pages, or keeps any for another one."""
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "kv_transfer_leases")

        def idle() -> bool:
            text = self.http.get("/fleet/metrics").text
            values = [
                line.rpartition(" ")[2]
                for line in text.splitlines()
                if line.startswith(tuple(f"jaxllm:{n}{{" for n in names))
            ]
            return len(values) >= 12 and not any(map(float, values)) and not any(s["in_flight"] for s in self.states())

        until(idle)


def answer(client: httpx.Client, prompt: str, **more: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **more}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    process = ServerProcess(FLAGS, tmp_path_factory.mktemp("fleet") / "log", {})
    fleet = None
    try:
        fleet = Fleet(process)
        yield fleet
    finally:
        for client in () if fleet is None else (fleet.http, *fleet.direct.values()):
            client.close()
        if process.process.poll() is None:
            children = psutil.Process(process.process.pid).children(recursive=True)
            process.process.kill()
            process.process.wait()
            # Nobody tells them: they see that the router is gone.
            _, alive = psutil.wait_procs(children, timeout=60)
            assert not alive


def texts(response: Any) -> list[Any]:
    return [
        (each["index"], each.get("text") or each["message"]["content"], each["finish_reason"])
        for each in response["choices"]
    ]


PARAMETERS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1, "seed": 5, "n": 3},
    {"temperature": 0.7, "seed": 6, "logprobs": 2, "min_tokens": 3},
]


@pytest.mark.parametrize("number", range(len(PARAMETERS)))
@pytest.mark.parametrize("chat", [False, True])
def test_answers_are_those_of_one_server(fleet: Fleet, number: int, *, chat: bool) -> None:
    """The prefill server is a whole one: asked for itself, it computes prompt and answer."""
    parameters = dict(PARAMETERS[number])
    text = story(f"same{number}{chat}")
    body: dict[str, Any] = {"max_tokens": 12, **parameters}
    if chat:
        body["messages"] = [{"role": "user", "content": text}]
        if "logprobs" in body:
            body |= {"logprobs": True, "top_logprobs": 2}
    else:
        body["prompt"] = text
    path = "/v1/chat/completions" if chat else "/v1/completions"
    before = fleet.count("router_prompts_total", computed="prefill")
    apart = fleet.http.post(path, json=body).json()
    assert fleet.count("router_prompts_total", computed="prefill") == before + 1
    alone = fleet.direct["prefill-0"].post(path, json=body).json()
    assert texts(apart) == texts(alone)
    assert [each.get("logprobs") for each in apart["choices"]] == [each.get("logprobs") for each in alone["choices"]]
    usage = apart["usage"]
    assert usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"] <= 16
    assert usage["completion_tokens"] == alone["usage"]["completion_tokens"]


def test_streams_of_the_openai_client(fleet: Fleet) -> None:
    asked: dict[str, Any] = {
        "model": "demo", "messages": [{"role": "user", "content": story("streamed")}], "stream": True,
        "max_completion_tokens": 12, "temperature": 1, "seed": 3, "n": 2, "stream_options": {"include_usage": True},
    }  # fmt: skip
    found = []
    for url in (fleet.url, str(fleet.direct["prefill-0"].base_url)):
        with openai.OpenAI(base_url=f"{url.rstrip('/')}/v1", api_key="none", max_retries=0) as client:
            parts = ["", ""]
            usage = None
            for chunk in client.chat.completions.create(**asked):
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    parts[choice.index] += choice.delta.content or ""
            assert usage is not None
            found.append((parts, usage.completion_tokens))
    assert found[0] == found[1]


def test_short_and_unsupported_prompts_are_computed_where_they_are_decoded(fleet: Fleet) -> None:
    def computed(place: str) -> float:
        return fleet.count("router_prompts_total", computed=place)

    short, other = computed("short"), computed("unsupported")
    fleet.complete("Hi")
    fleet.complete("of some words, but of few tokens all the same", max_tokens=2)
    assert computed("short") == short + 2
    assert len(fleet.http.post("/v1/completions", json={"prompt": [story("a"), story("b")]}).json()["choices"]) == 2
    fleet.complete(story("echo"), echo=True)
    assert computed("unsupported") == other + 2


def test_errors_and_other_routes_are_those_of_a_server(fleet: Fleet) -> None:
    wrong: list[Any] = [{"prompt": story("x"), "max_tokens": -1}, {"prompt": story("x"), "model": "gone"}, [], "text"]
    for body in wrong:
        through, direct = (
            client.post("/v1/completions", json=body) for client in (fleet.http, fleet.direct["decode-0"])
        )
        assert (through.status_code, through.json()) == (direct.status_code, direct.json())
    assert fleet.http.get("/v1/models").json()["data"][0]["id"] == "demo"
    assert fleet.http.get("/nothing").status_code == 404
    assert fleet.http.post("/scale", json={}).status_code == 404
    assert fleet.http.post("/reset_prefix_cache").status_code == 200
    lines = fleet.http.get("/fleet/metrics").text
    assert {name for name in fleet.direct if f'server="{name}"' in lines} == set(fleet.direct)


def test_a_request_goes_where_its_prefix_is(fleet: Fleet) -> None:
    def told(name: str, least: int) -> None:
        until(lambda: (fleet.state(name)["cached_blocks"] or 0) >= least)

    assert fleet.http.post("/reset_prefix_cache").status_code == 200
    until(lambda: all(each["cached_blocks"] == 0 for each in fleet.states()))
    prompts = [story(f"prefix{number}", 3) for number in range(3)]
    for prompt in prompts:
        answer(fleet.direct["decode-1"], prompt)
    told("decode-1", 9)
    cached, asked = (
        fleet.count("router_prompts_total", computed="cached"),
        fleet.count("router_requests_total", server="decode-1"),
    )
    for prompt in prompts:
        assert fleet.complete(prompt + "And")["usage"]["prompt_tokens_details"]["cached_tokens"] >= 48
    assert fleet.count("router_prompts_total", computed="cached") == cached + 3
    assert fleet.count("router_requests_total", server="decode-1") >= asked + 3

    # Other prompts take all pages there.
    for number in range(5):
        answer(fleet.direct["decode-1"], story(f"flood{number}", 13))
    answer(fleet.direct["decode-0"], prompts[0])
    told("decode-0", 3)
    usage = fleet.complete(prompts[0] + "But")["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 48
    assert fleet.count("router_prompts_total", computed="cached") == cached + 4

    # An engine that is started again has nothing.
    engine = next(
        child for child in fleet.server("decode-0").children() if "jaxllm.serving.ipc.engine_process" in child.cmdline()
    )
    engine.kill()
    until(lambda: fleet.state("decode-0")["reads_events"] is False or fleet.state("decode-0")["cached_blocks"] == 0)
    until(lambda: fleet.state("decode-0")["up"] and fleet.state("decode-0")["cached_blocks"] == 0)
    answer(fleet.direct["decode-1"], prompts[0])
    told("decode-1", 3)
    asked = fleet.count("router_requests_total", server="decode-1", status="200")
    usage = fleet.complete(prompts[0] + "Or")["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= 48
    assert fleet.count("router_requests_total", server="decode-1", status="200") > asked


def abort(fleet: Fleet, number: int) -> None:
    """A request whose client leaves at some point, from before the prompt is computed to after many tokens."""
    body: dict[str, Any] = {
        "prompt": story(f"abort{number}", 8), "max_tokens": 300, "ignore_eos": True, "stream": number % 3 > 0,
        "n": 1 + number % 2,
    }  # fmt: skip
    seconds = 0.003 * 1.5 ** (number % 13)
    try:
        with httpx.stream(
            "POST", f"{fleet.url}/v1/completions", json=body, timeout=httpx.Timeout(60, read=seconds)
        ) as got:
            deadline = time.monotonic() + seconds
            for _ in got.iter_raw():
                if time.monotonic() > deadline:
                    return
    except httpx.ReadTimeout:
        return


@pytest.mark.parametrize("count", [26, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_nothing_is_left_of_requests_whose_clients_leave(fleet: Fleet, count: int) -> None:
    expired = fleet.num_expired()
    leave(fleet, range(count // 2))
    before = fleet.memory()
    leave(fleet, range(count // 2, count))
    assert fleet.memory() < before + 64 * 2**20
    # An answer that comes in the very moment in which its client leaves may be lost.
    assert fleet.num_expired() <= expired + 1 + count // 500
    assert fleet.count("router_aborted_total") > 0
    assert fleet.complete(story("after"))["usage"]["completion_tokens"] == 8


def leave(fleet: Fleet, names: Iterable[int]) -> None:
    """Abort these requests, four at a time, and wait until nothing is left of them."""
    numbers = iter(names)
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            abort(fleet, number)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fleet.wait_until_idle()


async def test_what_is_too_much_for_one_server_goes_to_the_other_and_then_back_to_the_client(fleet: Fleet) -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=fleet.url, timeout=SECONDS, limits=limits) as client:
        body: dict[str, Any] = {"max_tokens": 200, "ignore_eos": True}
        asked = (client.post("/v1/completions", json={"prompt": f"{number}", **body}) for number in range(40))
        found = await asyncio.gather(*asked)
    assert {each.status_code for each in found} == {200, 503}
    assert all("retry-after" in each.headers for each in found if each.status_code == 503)
    assert fleet.count("router_retries_total") > 0
    assert all(each["up"] for each in fleet.states())


def test_without_its_prefill_server_prompts_are_computed_where_they_are_decoded(fleet: Fleet) -> None:
    text = story("orphan")
    expected = texts(answer(fleet.direct["prefill-0"], text))
    victim = fleet.server("prefill-0")
    victim.suspend()  # it is not started again while the test looks
    for child in victim.children(recursive=True):
        child.kill()
    victim.kill()
    assert texts(fleet.complete(text)) == expected
    assert (
        fleet.count("router_prompts_total", computed="unavailable")
        + fleet.count("router_prompts_total", computed="failed")
        >= 1
    )


def test_another_decode_server_answers_for_a_dead_one(fleet: Fleet) -> None:
    def whole(number: int, found: list[Any]) -> None:
        found.append(fleet.complete(story(f"dying{number}"), max_tokens=200)["usage"]["completion_tokens"])

    answers: list[int] = []
    threads = [threading.Thread(target=whole, args=(number, answers)) for number in range(4)]
    victim = fleet.server("decode-1")
    with fleet.http.stream("POST", "/v1/completions", json={"prompt": "Hi", "stream": True, "max_tokens": 2}) as got:
        got.read()
    for thread in threads:
        thread.start()
    until(lambda: fleet.state("decode-1")["in_flight"] > 0)
    for child in victim.children(recursive=True):
        child.kill()
    victim.kill()
    for thread in threads:
        thread.join()
    assert answers == [200] * 4
    # Both servers that were killed are started again.
    until(lambda: all(each["up"] for each in fleet.states()))
    before = fleet.count("router_prompts_total", computed="prefill")
    fleet.complete(story("again"))
    assert fleet.count("router_prompts_total", computed="prefill") == before + 1


def test_a_stream_whose_server_dies_says_so(fleet: Fleet) -> None:
    body = {"prompt": "Hi", "stream": True, "max_tokens": 400, "ignore_eos": True}
    with fleet.http.stream("POST", "/v1/completions", json=body) as got:
        lines = got.iter_lines()
        assert next(lines).startswith("data: ")
        name = next(each["name"] for each in fleet.states() if each["in_flight"])
        victim = fleet.server(name)
        for child in victim.children(recursive=True):
            child.kill()
        victim.kill()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert name in events[-1]["error"]["message"]


def test_one_signal_ends_everything(fleet: Fleet) -> None:
    # The server that the last test has killed has its engine again.
    until(lambda: all(each["up"] for each in fleet.states()))
    process = psutil.Process(fleet.process.process.pid)
    until(lambda: len(process.children(recursive=True)) >= 5)
    children = process.children(recursive=True)
    fleet.process.signal(signal.SIGINT)
    assert fleet.process.end() == 0, fleet.process.log
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
    log = fleet.process.log
    assert "Traceback" not in log, log
    assert "decode-1 | " in log
