"""Log lines, as text or as JSON, and the two things that are always worth one: the start, and the load."""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from jaxllm.config.engine_info import EngineInfo, StageInfo
from jaxllm.engine.stats import NO_DRAFTS, StepStats, merge_stats
from jaxllm.serving.options.origins import NO_ORIGINS, Origins
from jaxllm.serving.telemetry.log_format import JsonFormatter, TextFormatter
from jaxllm.serving.text.measurements import Measurements
from jaxllm.version import __version__

logger = logging.getLogger(__name__)

# Libraries that have much to say of what concerns nobody here.
_CHATTY = ("absl", "asyncio", "filelock", "httpcore", "httpx", "huggingface_hub", "jax", "urllib3")


def configure_logging(level: str, *, json_lines: bool) -> None:
    """Log to standard error from `level` ("debug" to "critical") on, with `json_lines` one JSON object per line.

    A line's request id comes from `extra={"request_id": ...}` or from `current_request_id`. May be called again. In
    JSON, everything given as `extra` is a field of its own, and Python's warnings are log lines too.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _StderrHandler)]:
        root.removeHandler(handler)
    handler = _StderrHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if json_lines else TextFormatter())
    root.addHandler(handler)
    root.setLevel(number)
    for name in _CHATTY:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    logging.captureWarnings(json_lines)


class _StderrHandler(logging.StreamHandler[Any]):
    """Ours, so that configuring again replaces it and nobody else's."""


class _Interval:
    """How many requests ran and waited from one report to the next: sums over time, in request seconds, and maxima."""

    def __init__(self, now: float | None = None, stats: StepStats | None = None) -> None:
        self._last, self._stats = now, stats or StepStats()
        self.running = self.waiting = self._seconds = 0.0
        self.most_running, self.most_waiting = self._stats.num_running, self._stats.num_waiting
        self.finished = 0

    def observe(self, now: float, stats: StepStats) -> None:
        """From the last call until `now` it was as it was said then; from now on it is `stats`."""
        if self._last is not None:
            seconds = now - self._last
            self.running += self._stats.num_running * seconds
            self.waiting += self._stats.num_waiting * seconds
            if self._stats.num_running or self._stats.num_waiting:
                self._seconds += seconds
        self._last, self._stats = now, stats
        self.most_running = max(self.most_running, stats.num_running)
        self.most_waiting = max(self.most_waiting, stats.num_waiting)

    def mean(self, total: float, now: float) -> float:
        """Over the time in which there was load; what is `now` where there was none to speak of."""
        return total / self._seconds if self._seconds > 0 else now


class ThroughputLog:
    """Logs a line about throughput in intervals while there is load, and none while there is not.

    Rates are over the time in which the engine was busy, so that a burst is not averaged with the rest around it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.refused: Callable[[], int] = lambda: 0
        """Tells how many requests were told to come back later, so far."""
        self._refused = 0
        self._clock = clock
        self._stats = StepStats()
        self._engines: dict[int, StepStats] = {}
        self._prompt_tokens = 0
        self._generation_tokens = 0
        self._begin: float | None = None
        """From where on the load was not logged yet; None: there is no load."""
        self._end = 0.0
        self._heard = False
        self._queries = 0
        self._hits = 0
        self._hit_rate: float | None = None
        self._preemptions = 0
        self._stage_seconds: tuple[float, ...] = ()
        self._drafts = NO_DRAFTS
        self._interval = _Interval()

    def observe(self, stats: StepStats | None, measured: Measurements | None, engine: int = 0) -> None:
        """Take one message of an engine."""
        now = self._clock()
        if stats is not None:
            self._engines[engine] = stats
            self._stats = stats if len(self._engines) == 1 else merge_stats(self._engines.values())
        if measured is not None:
            self._prompt_tokens += measured.prompt_tokens
            self._generation_tokens += measured.generation_tokens
            self._interval.finished += len(measured.finished)
        self._interval.observe(now, self._stats)
        if self._begin is None and stats is not None and stats.num_steps:
            self._begin = now - stats.step_seconds
        self._end, self._heard = now, True

    async def run(self, interval: float = 10.0) -> None:
        """Log a line every `interval` seconds while there is load; until cancelled."""
        while True:
            await asyncio.sleep(interval)
            report = self.report()
            if report is not None:
                logger.info("%s", _throughput_line(report), extra=report)

    def report(self) -> dict[str, float] | None:
        """The figures since the last call: tokens per second, shares from 0 to 1. None when nothing did."""
        if self._begin is None or not self._heard:
            # Heard nothing under load: the engine is in a long step, or dead. Others tell which.
            return None
        stats, seconds = self._stats, self._end - self._begin
        queries, hits = stats.prefix_queries - self._queries, stats.prefix_hits - self._hits
        if queries > 0:
            self._hit_rate = hits / queries
        interval, self._interval = self._interval, _Interval(now=self._end, stats=stats)
        refused, before = self.refused(), self._refused
        self._refused = refused
        report = {
            "running": stats.num_running,
            "waiting": stats.num_waiting,
            "running_mean": round(interval.mean(interval.running, stats.num_running), 1),
            "waiting_mean": round(interval.mean(interval.waiting, stats.num_waiting), 1),
            "running_max": interval.most_running,
            "waiting_max": interval.most_waiting,
            "finished": interval.finished,
            "refused": refused - before,
            "preemptions": stats.num_preemptions - self._preemptions,
            "prompt_tokens_per_second": round(self._prompt_tokens / seconds, 1) if seconds > 0 else 0.0,
            "generation_tokens_per_second": round(self._generation_tokens / seconds, 1) if seconds > 0 else 0.0,
            "kv_cache_usage": round(stats.kv_usage, 4),
        }
        if stats.stage_seconds and seconds > 0:
            before_stages = self._stage_seconds or (0.0,) * len(stats.stage_seconds)
            for number, (first, last) in enumerate(zip(before_stages, stats.stage_seconds, strict=True)):
                report[f"stage_{number}_busy"] = round(min(max(last - first, 0.0) / seconds, 1.0), 3)
        self._stage_seconds = stats.stage_seconds
        drafts, self._drafts = stats.drafts.since(self._drafts), stats.drafts
        if drafts.num_drafts:
            report["draft_acceptance_rate"] = round(drafts.num_accepted_tokens / drafts.num_draft_tokens, 4)
            report["mean_acceptance_length"] = round(1 + drafts.num_accepted_tokens / drafts.num_drafts, 2)
        if self._hit_rate is not None:
            report["prefix_cache_hit_rate"] = round(self._hit_rate, 4)
        self._queries, self._hits = stats.prefix_queries, stats.prefix_hits
        self._preemptions = stats.num_preemptions
        self._prompt_tokens = self._generation_tokens = 0
        self._begin = self._end if stats.num_running or stats.num_waiting else None
        self._heard = False
        return report


def _throughput_line(report: dict[str, float]) -> str:
    preempted = f", {report['preemptions']} preempted" if report["preemptions"] else ""
    refused = f", {report['refused']} rejected" if report["refused"] else ""
    parts = [
        f"{report['running_mean']:g} running (at most {report['running_max']})",
        f"{report['waiting_mean']:g} waiting (at most {report['waiting_max']})",
        f"{report['finished']} finished{preempted}{refused}",
        f"prompt {report['prompt_tokens_per_second']:,.1f} tokens/s",
        f"generation {report['generation_tokens_per_second']:,.1f} tokens/s",
        f"KV cache {report['kv_cache_usage']:.1%}",
    ]
    stages = [value for name, value in report.items() if name.startswith("stage_")]
    if stages:
        parts.append(f"stages busy {', '.join(f'{value:.0%}' for value in stages)}")
    if "draft_acceptance_rate" in report:
        length = report["mean_acceptance_length"]
        parts.append(f"drafts accepted {report['draft_acceptance_rate']:.1%}, {length:.2f} tokens per step")
    if "prefix_cache_hit_rate" in report:
        parts.append(f"prefix cache hits {report['prefix_cache_hit_rate']:.1%}")
    return "; ".join(parts)


def _stage(stage: StageInfo) -> str:
    each = f"{stage.weight_bytes / 2**30:.2f} GiB of weights and {stage.cache_bytes / 2**30:.2f} GiB of KV cache"
    devices = "a device" if stage.num_devices == 1 else f"each of {stage.num_devices} devices"
    return f"layers {stage.start} to {stage.stop - 1}: {each} on {devices}"


def banner(info: EngineInfo, urls: Sequence[str], load_seconds: float, origins: Origins = NO_ORIGINS) -> str:
    """The banner: the model, its room, the URLs, and where settings came from. A few lines for a person."""
    devices = info.device_kind if info.num_devices == 1 else f"{info.num_devices} x {info.device_kind}"
    room = f"{info.kv_tokens:,} tokens: {info.max_concurrency:,.1f} requests of {info.max_model_len:,} tokens at once"
    kind = "" if info.kv_cache_dtype in ("auto", info.dtype) else f"{info.kv_cache_dtype}; "
    cache = ("KV cache", f"{room}; {kind}prefix cache {'on' if info.enable_prefix_caching else 'off'}")
    if info.pooling is not None:
        tasks = ", ".join(info.pooling.tasks)
        cache = ("pooling", f"{tasks}: {info.pooling.size:,} values per text of up to {info.max_model_len:,} tokens")
    steps = f"up to {info.max_num_seqs:,} requests and {info.max_num_batched_tokens:,} tokens"
    rows = [
        ("device", f"{devices}, {info.dtype}"),
        cache,
        *([("copies", ", ".join(info.tiers))] if info.tiers else []),
        ("steps", f"{steps}, in {info.num_shapes} shapes"),
        *((f"stage {number}", _stage(stage)) for number, stage in enumerate(info.stages)),
        ("ready after", f"{load_seconds:.1f} s"),
        *(("OpenAI API", url if url.startswith("unix:") else f"{url}/v1") for url in urls),
        # Among settings there may be other URLs: who looks for the first one means the server's.
        *origins.rows(msgspec.structs.asdict(info)),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"  {name:<{width}}  {value}" for name, value in rows]
    return "\n".join([f"jaxllm {__version__} serves {info.model}", *lines])
