"""Log lines in processes of their own, and the line about throughput with a clock set by hand."""

import asyncio
import json
import logging
import re
from datetime import UTC, datetime
from textwrap import dedent
from typing import Any

import pytest
from msgspec.structs import replace

from jaxllm.config.engine_info import EngineInfo
from jaxllm.engine.stats import StepStats
from jaxllm.serving.telemetry.logs import ThroughputLog, _throughput_line, banner
from jaxllm.serving.text.measurements import FinishedRequest, Measurements
from jaxllm.speculation.statistics import DraftCounts
from tests.conftest import RunPython

STEP = StepStats(
    num_running=2,
    num_waiting=1,
    kv_usage=0.25,
    num_rows=2,
    num_tokens=2,
    bucket_tokens=8,
    step_seconds=0.5,
    num_steps=1,
)
IDLE = replace(STEP, num_running=0, num_waiting=0, kv_usage=0.0)


def lines(run_python: RunPython, code: str) -> list[str]:
    """The standard error of a program that uses the logger `log`."""
    head = "import logging, warnings\nfrom jaxllm.serving.telemetry.logs import *\n"
    head += "from jaxllm.serving.telemetry.log_format import current_request_id\n"
    head += "log = logging.getLogger('jaxllm.test')\n"
    done = run_python("-c", head + dedent(code))
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_text(run_python: RunPython) -> None:
    found = lines(
        run_python,
        """
        configure_logging("info", json_lines=False)
        log.debug("not this")
        log.info("one %s", 1)
        log.info("two", extra={"request_id": "cmpl-7"})
        log.info("three of cmpl-7", extra={"request_id": "cmpl-7"})
        current_request_id.set("cmpl-8")
        log.warning("four")
        logging.getLogger("httpx").info("not this")
        """,
    )
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}"
    assert all(re.match(f"{time} [A-Z]+ jaxllm.test: ", line) for line in found)
    assert [line.split(maxsplit=2)[2] for line in found] == [
        "INFO jaxllm.test: one 1",
        "INFO jaxllm.test: two (request cmpl-7)",
        "INFO jaxllm.test: three of cmpl-7",
        "WARNING jaxllm.test: four (request cmpl-8)",
    ]


def test_json(run_python: RunPython) -> None:
    before = datetime.now(UTC)
    found = lines(
        run_python,
        r"""
        configure_logging("info", json_lines=True)
        log.info("one\n%s", {"a": 1}, extra={"tokens": 7, "what": object})
        log.info("two", extra={"request_id": "cmpl-7"})
        current_request_id.set("cmpl-8")
        try:
            1 / 0
        except ZeroDivisionError:
            log.exception("three \ud800 日本語")
        warnings.warn("careful")
        """,
    )
    one, two, three, four = map(json.loads, found)
    assert (
        before.timestamp() - 0.001 <= datetime.fromisoformat(one["time"]).timestamp() <= datetime.now(UTC).timestamp()
    )
    assert (one["level"], one["logger"], one["message"]) == ("info", "jaxllm.test", "one\n{'a': 1}")
    assert (one["tokens"], one["what"]) == (7, "<class 'object'>")
    assert "request_id" not in one
    assert two["request_id"] == "cmpl-7"
    assert set(two) == {"time", "level", "logger", "process", "message", "request_id"}
    assert (three["level"], three["request_id"]) == ("error", "cmpl-8")
    assert three["message"] == "three \\ud800 日本語"
    assert "ZeroDivisionError: division by zero" in three["exception"]
    assert "careful" in four["message"]


def test_configured_again(run_python: RunPython) -> None:
    found = lines(
        run_python,
        """
        logging.getLogger().addHandler(theirs := logging.NullHandler())
        configure_logging("info", json_lines=True)
        configure_logging("error", json_lines=False)
        log.warning("not this")
        log.error("this")
        configure_logging("debug", json_lines=False)
        log.debug("and this")
        assert theirs in logging.getLogger().handlers
        """,
    )
    assert [line.rpartition(": ")[2] for line in found] == ["this", "and this"]


def test_logging_loads_no_device(run_python: RunPython) -> None:
    assert lines(run_python, "import sys\nassert not {'jax', 'transformers', 'torch'} & set(sys.modules)") == []


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_rates_while_there_is_load() -> None:
    clock = Clock()
    log = ThroughputLog(clock)
    assert log.report() is None
    log.observe(replace(STEP, prefix_queries=200, prefix_hits=50), Measurements(200, 3))
    clock.now += 1.5
    log.observe(replace(STEP, prefix_queries=200, prefix_hits=50), Measurements(0, 5))
    clock.now += 8
    # Busy for two seconds: the first step took half a second when it was told.
    assert log.report() == {
        "running": 2, "waiting": 1, "running_mean": 2.0, "waiting_mean": 1.0, "running_max": 2, "waiting_max": 1,
        "finished": 0, "refused": 0, "preemptions": 0,
        "prompt_tokens_per_second": 100.0, "generation_tokens_per_second": 4.0,
        "kv_cache_usage": 0.25, "prefix_cache_hit_rate": 0.25,
    }  # fmt: skip
    # From here on without gaps: 10 s since the last news that was counted.
    clock.now += 2
    log.observe(replace(STEP, prefix_queries=300, prefix_hits=150), Measurements(0, 20))
    report = log.report()
    assert report is not None
    assert (report["prompt_tokens_per_second"], report["generation_tokens_per_second"]) == (0.0, 2.0)
    assert report["prefix_cache_hit_rate"] == 1.0


def test_what_was_between_two_lines_counts() -> None:
    """The state at the moment of the line says nothing: short requests come and go between two."""
    clock = Clock()
    log = ThroughputLog(clock)
    ended = FinishedRequest("stop", 1.0, 0.0, 0.1, 0.9, 5, 3, 16)
    for running, waiting, seconds in ((8, 20, 3.0), (4, 0, 1.0), (0, 0, 4.0), (2, 0, 1.0)):
        stats = replace(STEP, num_running=running, num_waiting=waiting, num_preemptions=int(clock.now > 102))
        log.observe(stats, Measurements(finished=[ended] * 2))
        clock.now += seconds
    log.observe(replace(IDLE, num_preemptions=1), Measurements())
    report = log.report()
    assert report is not None
    assert (report["running"], report["waiting"]) == (0, 0)
    # 8 for 3 s, 4 for 1 s, 2 for 1 s: the pause is not load.
    assert (report["running_mean"], report["waiting_mean"]) == (6.0, 12.0)
    assert (report["running_max"], report["waiting_max"]) == (8, 20)
    assert (report["finished"], report["preemptions"]) == (8, 1)
    clock.now += 5
    log.observe(replace(STEP, num_running=1, num_waiting=0, num_preemptions=1), Measurements())
    report = log.report()
    assert report is not None
    assert (report["running_max"], report["waiting_max"], report["finished"], report["preemptions"]) == (1, 0, 0, 0)


@pytest.mark.parametrize("engines", [1, 2])
def test_how_busy_stages_are(engines: int) -> None:
    """Of several engines in stages it is the mean."""
    clock = Clock()
    log = ThroughputLog(clock)
    found = []
    for seconds in ((0.0, 0.0), (3.0, 1.0), (8.0, 1.0)):
        for engine in range(engines):
            share = 1.0 if engine == 0 else 0.5
            stages = tuple(share * each for each in seconds)
            log.observe(replace(STEP, step_seconds=0.0, stage_seconds=stages), None, engine)
        report = log.report()
        assert report is not None
        found.append([report[name] for name in report if name.startswith("stage_")])
        clock.now += 5
    assert found == [[], *([[0.6, 0.2], [1.0, 0.0]] if engines == 1 else [[0.45, 0.15], [0.75, 0.0]])]


def test_what_was_refused_counts() -> None:
    log, refused = ThroughputLog(), 3
    log.refused = lambda: refused
    found = []
    for refused in (3, 5, 5):  # noqa: B007  (the log asks)
        log.observe(STEP, None)
        report = log.report()
        assert report is not None
        found.append(report["refused"])
    assert found == [3, 2, 0]


def test_drafts_that_were_right_are_those_of_the_interval() -> None:
    log, counts = ThroughputLog(Clock()), DraftCounts()
    found, lines = [], []
    for new in (DraftCounts(10, 30, 15, (10, 5)), DraftCounts(4, 12, 3, (3,))):
        counts = counts.plus(new)
        log.observe(replace(STEP, drafts=counts), None)
        report = log.report()
        assert report is not None
        found.append((report["draft_acceptance_rate"], report["mean_acceptance_length"]))
        lines.append(_throughput_line(report))
    assert found == [(0.5, 2.5), (0.25, 1.75)]
    assert "drafts accepted 25.0%, 1.75 tokens per step" in lines[1]


def test_one_last_line_and_then_silence() -> None:
    clock = Clock()
    log = ThroughputLog(clock)
    log.observe(STEP, Measurements(10, 2))
    assert log.report() is not None
    clock.now += 4
    log.observe(IDLE, Measurements(0, 8))
    last = log.report()
    assert last is not None
    assert (last["running"], last["generation_tokens_per_second"]) == (0, 2.0)
    assert log.report() is None
    log.observe(replace(IDLE, num_steps=0, step_seconds=0.0), Measurements())
    assert log.report() is None, "news without a step are no load"
    clock.now += 1000
    log.observe(STEP, Measurements(10, 4))
    again = log.report()
    assert again is not None
    assert again["generation_tokens_per_second"] == 8.0, "the pause counts"


def test_an_abort_ends_the_load() -> None:
    clock = Clock()
    log = ThroughputLog(clock)
    log.observe(STEP, Measurements(10, 2))
    assert log.report() is not None
    clock.now += 1
    log.observe(replace(IDLE, num_steps=0, step_seconds=0.0), Measurements())
    last = log.report()
    assert last is not None
    assert last["running"] == 0
    assert log.report() is None


def test_no_line_for_an_engine_that_says_nothing() -> None:
    log = ThroughputLog(Clock())
    log.observe(STEP, Measurements(10, 2))
    assert log.report() is not None
    assert log.report() is None


class Lines(logging.Handler):
    """Collects what is logged, for a test that waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.records: asyncio.Queue[Any] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.put_nowait(record)


async def test_lines_are_logged_in_intervals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jaxllm.serving.telemetry.logs")
    collected = Lines()
    logger = logging.getLogger("jaxllm.serving.telemetry.logs")
    logger.addHandler(collected)
    log = ThroughputLog()
    running = asyncio.create_task(log.run(interval=0.001))
    try:
        log.observe(STEP, Measurements(100, 2))
        first = await collected.records.get()
        log.observe(replace(IDLE, prefix_queries=100, prefix_hits=64), Measurements(0, 2))
        last = await collected.records.get()
        await asyncio.sleep(0.02)
        assert collected.records.empty()
    finally:
        running.cancel()
        logger.removeHandler(collected)
    assert re.fullmatch(
        r"2 running \(at most 2\); 1 waiting \(at most 1\); 0 finished; "
        r"prompt [\d,]+\.\d tokens/s; generation [\d.]+ tokens/s; KV cache 25\.0%",
        first.getMessage(),
    )
    assert last.getMessage().endswith("; KV cache 0.0%; prefix cache hits 64.0%")
    assert (last.running, last.prefix_cache_hit_rate) == (0, 0.64)


def test_banner() -> None:
    info = EngineInfo(
        model="org/model", model_folder=".", vocab_size=400, eos_token_ids=(9,), max_model_len=2048, max_num_seqs=64,
        max_num_batched_tokens=8192, max_logprobs=20, num_pages=8193, block_size=16, enable_prefix_caching=True,
        dtype="bfloat16", device_kind="TPU v6e", num_devices=4, num_shapes=12,
    )  # fmt: skip
    text = banner(info, ["http://localhost:8000", "unix:/run/jaxllm"], 12.34)
    for part in (
        "serves org/model", "4 x TPU v6e, bfloat16", "131,072 tokens: 64.0 requests of 2,048 tokens",
        "up to 64 requests and 8,192 tokens, in 12 shapes", "12.3 s", "http://localhost:8000/v1",
        "unix:/run/jaxllm", "prefix cache on",
    ):  # fmt: skip
        assert part in text
    assert len(text.splitlines()) == 7
    single = banner(replace(info, num_devices=1, enable_prefix_caching=False), [], 1.0)
    assert "  TPU v6e, bfloat16" in single
    assert "prefix cache off" in single
    copies = banner(replace(info, tiers=("4.00 GiB of host memory", "64.00 GiB in /a")), [], 1.0)
    assert "  copies       4.00 GiB of host memory, 64.00 GiB in /a" in copies
