"""`jaxllm bench serve`: load for any OpenAI server, and what it makes of it."""

import argparse
import os
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxllm.errors import ConfigError, EngineError
from jaxllm.flags import FlagParser
from jaxllm.serving.bench.drafts import draft_figures, read_draft_counters
from jaxllm.serving.bench.options import DatasetOptions, LoadOptions, ReportOptions, TargetOptions
from jaxllm.serving.cli.bench.sections import add_section, read_section
from jaxllm.serving.cli.tls import add_tls_flags

if TYPE_CHECKING:
    # These load numpy, which a wrong flag should not have to wait for.
    import numpy as np

    from jaxllm.serving.bench.client import LoadResult, LoadTarget
    from jaxllm.serving.bench.datasets.request import LoadRequest
    from jaxllm.serving.bench.measurements import Measurements
    from jaxllm.serving.text.tokenizer import Tokenizer

HELP = "Load-test a server with OpenAI's API and report throughput and latencies. Flags and figures match vLLM's."
EXAMPLES = """examples:
  jaxllm bench serve                                            1000 random prompts, all at once
  jaxllm bench serve --request-rate 4 --num-prompts 200         4 requests per second, as a Poisson process
  jaxllm bench serve --max-concurrency 32 --random-input-len 512 --random-output-len 64
  jaxllm bench serve --backend openai-chat --dataset-name sharegpt --dataset-path sharegpt.json
  jaxllm bench serve --request-rate 8 --goodput ttft:500 tpot:50
  jaxllm bench serve --base-url http://gpu-box:8000 --save-result --plot result.png

After Ctrl-C, the results so far are reported, and the exit code is 130. It is 1 if every request failed."""
INTERRUPTED = 130


def add_arguments(parser: FlagParser) -> None:
    """Declare the server, the load and the report."""
    parser.epilog = EXAMPLES
    add_section(parser, "server", TargetOptions)
    add_tls_flags(parser.add_argument_group("TLS"))
    # vLLM's flags: there is one kind of tokenizer, and remote code is never run.
    parser.add_argument("--trust-remote-code", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--tokenizer-mode", choices=("auto", "hf"), help=argparse.SUPPRESS)
    add_section(parser, "dataset", DatasetOptions)
    add_section(parser, "load", LoadOptions)
    add_section(parser, "report", ReportOptions)


def run(args: argparse.Namespace) -> int:
    """Send, wait, report; 1 when every request failed, 130 when interrupted."""
    return LoadTest(args).run()


@dataclass
class Run:
    """The outcome of a load test."""

    measured: "Measurements"
    duration: float
    interrupted: bool
    probes: "list[LoadResult]"
    rates: "list[dict[str, Any]]"
    drafts: dict[str, Any]


class LoadTest:
    """One load test, as the flags describe it. Raises `ConfigError` for those that are wrong."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._where = read_section(args, TargetOptions)
        self._dataset = read_section(args, DatasetOptions)
        self._load = read_section(args, LoadOptions)
        self._report = read_section(args, ReportOptions)
        if self._report.plot is not None:
            from jaxllm.serving.bench.plot import check_plotting

            check_plotting()
        # They load numpy, which flags that are wrong in themselves need not wait for.
        from jaxllm.serving.bench import report, results
        from jaxllm.serving.bench.client import ENDPOINTS, backend_of

        endpoint = self._where.endpoint or ENDPOINTS[self._where.backend or "openai"]
        self._backend = self._where.backend or backend_of(endpoint)
        if backend_of(endpoint) != self._backend and endpoint in ENDPOINTS.values():
            raise ConfigError(f"--backend {self._backend} cannot be combined with --endpoint {endpoint}")
        self._is_stream = self._backend != "openai-embeddings"
        host = f"[{self._where.host}]" if ":" in self._where.host else self._where.host
        self._base = (self._where.base_url or f"http://{host}:{self._where.port}").rstrip("/")
        self._url = self._base + endpoint
        self._metrics = report.read_metrics(
            self._report.percentile_metrics or ",".join(report.OF_STREAMS if self._is_stream else report.OF_EMBEDDINGS)
        )
        self._percentiles = report.read_percentiles(self._report.metric_percentiles)
        self._goodput = report.read_goodput(self._report.goodput)
        self._metadata = results.read_pairs("metadata", self._report.metadata)
        self._headers = results.read_pairs("header", self._where.header)
        if not self._is_stream and (set(self._metrics) & {"ttft", "tpot", "itl"} or self._goodput):
            raise ConfigError(
                "embeddings have no output tokens: omit ttft, tpot and itl from --percentile-metrics and --goodput"
            )

    def run(self) -> int:
        """Do it; the exit code."""
        import numpy as np

        from jaxllm.serving.bench.arrivals import times_of
        from jaxllm.serving.server.event_loop import run_on_fast_loop

        target = self._target()
        requests = self._requests()
        times, rates = times_of(self._load, len(requests), np.random.default_rng(self._load.seed + 1))
        run_on_fast_loop(self._warm_up(target, requests))
        done = self._measure(target, requests, times, rates)
        return self._finish(target, done, len(requests))

    def _target(self) -> "LoadTarget":
        """Where to send; it notes where the tokenizer is found. Raises `EngineError` when no server is there."""
        from jaxllm.serving.bench.client import LoadTarget

        given = self._where
        key = given.api_key or os.environ.get("JAXLLM_API_KEY") or os.environ.get("OPENAI_API_KEY")
        model, root, tls = self._find_model(key)
        self._tokenizer_name = given.tokenizer or (given.model if given.served_model_name and given.model else root)
        extra: dict[str, Any] = {}
        if self._is_stream:
            extra |= self._load.sampling
            ignore = self._load.ignore_eos
            if ignore or (ignore is None and self._dataset.dataset_name == "random"):
                extra["ignore_eos"] = True
            if self._load.logprobs is not None:
                is_chat = self._backend == "openai-chat"
                wanted = {"logprobs": True, "top_logprobs": self._load.logprobs}
                extra |= wanted if is_chat else {"logprobs": self._load.logprobs}
        return LoadTarget(
            url=self._url,
            model=model,
            backend=self._backend,
            headers={**({"Authorization": f"Bearer {key}"} if key else {}), **self._headers},
            extra={**extra, **(self._load.extra_body or {})},
            tls=tls,
            request_id_prefix=given.request_id_prefix,
        )

    def _find_model(self, key: str | None) -> tuple[str, str, Any]:
        """Name and root of the model, and how the server is known; waits for it if asked to."""
        from jaxllm.serving.cli.api_client import ApiClient

        deadline = time.monotonic() + self._where.ready_check_timeout_sec
        wanted = self._where.served_model_name or self._where.model
        base = self._url.partition("/completions")[0].partition("/embeddings")[0].removesuffix("/chat")
        with ApiClient(base, key, cacert=self._args.cacert, insecure=self._args.insecure) as client:
            while True:
                try:
                    return *client.find_model(wanted), client.tls_context
                except EngineError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(1)

    def _requests(self) -> "list[LoadRequest]":
        from jaxllm.serving.bench.datasets.catalogue import Dataset, assign_models

        tokens = "template" if self._backend == "openai" else "tokens"
        form: Any = "text" if self._backend == "openai-chat" else tokens
        requests = Dataset(self._dataset, self._tokenizer, self._load.seed, form).requests()
        if self._backend != "openai-chat" and any(request.is_chat for request in requests):
            path = self._dataset.dataset_path
            raise ConfigError(f"{path} contains messages, which require --endpoint /v1/chat/completions")
        models = self._where.lora_modules
        at_random = self._where.lora_assignment == "random"
        return assign_models(requests, models, at_random=at_random, seed=self._load.seed) if models else requests

    def _tokenizer(self) -> "Tokenizer":
        from jaxllm.config import ModelOptions
        from jaxllm.serving.llm.loading import load_tokenizer

        try:
            return load_tokenizer(ModelOptions(model=self._tokenizer_name))
        except ConfigError as error:
            name = self._dataset.dataset_name
            raise ConfigError(
                f"--dataset-name {name} requires the model's tokenizer; give it with --tokenizer ({error})"
            ) from None

    async def _warm_up(self, target: "LoadTarget", requests: "list[LoadRequest]") -> None:
        """Requests that do not count. Raises `EngineError` where none works."""
        from jaxllm.serving.bench.load import gather_load, wait_until_ready

        if self._where.ready_check_timeout_sec:
            answer = await wait_until_ready(target, requests[0], self._where.ready_check_timeout_sec)
            if answer.error:
                raise EngineError(f"the server did not become ready: {answer.error}")
        if count := self._load.num_warmups:
            some = [requests[index % len(requests)] for index in range(count)]
            answers = await gather_load(target, some, [0.0] * count, self._load.max_concurrency)
            if all(answer.error for answer in answers):
                raise EngineError(f"the first request failed: {answers[0].error}")

    def _measure(
        self, target: "LoadTarget", requests: "list[LoadRequest]", times: list[float], rates: "np.ndarray | None"
    ) -> Run:
        """The load itself; Ctrl-C ends it."""
        from tqdm import tqdm

        from jaxllm.serving.bench.arrivals import rate_changes
        from jaxllm.serving.bench.load import Probe, profiled, run_load
        from jaxllm.serving.bench.measurements import Measurements
        from jaxllm.serving.server.event_loop import run_on_fast_loop

        measured = Measurements(keep_answers=self._report.save_detailed)
        before = read_draft_counters(self._base, target.headers, target.tls)
        probe = Probe(target, self._load.probe_request_rate)
        began, interrupted = datetime.now(UTC).astimezone(), False
        clock = [time.perf_counter(), 0.0]

        async def load() -> None:
            async with profiled(self._load.profile, target, self._base), probe:
                clock[0] = time.perf_counter()
                try:
                    await run_load(target, requests, times, take, self._load.max_concurrency)
                finally:
                    clock[1] = time.perf_counter()

        def take(index: int, answer: "LoadResult") -> None:
            measured.add(index, answer)
            bar.update()

        # Without a terminal, tqdm shows nothing.
        disable = True if self._report.disable_tqdm else None
        with tqdm(total=len(requests), disable=disable, dynamic_ncols=True, unit="request") as bar:
            try:
                run_on_fast_loop(load())
            except KeyboardInterrupt:
                interrupted = True
        changes = [] if rates is None else rate_changes(rates, times)
        events = [{"rps": rps, "timestamp": (began + timedelta(seconds=at)).isoformat()} for rps, at in changes]
        drafts = draft_figures(before, read_draft_counters(self._base, target.headers, target.tls))
        return Run(measured, max(clock[1] - clock[0], 1e-9), interrupted, probe.answers, events, drafts)

    def _finish(self, target: "LoadTarget", done: Run, asked: int) -> int:
        """Print and write what was measured; the exit code."""
        from jaxllm.serving.bench.report import details, table
        from jaxllm.serving.bench.results import result_name, write_json

        measured = done.measured
        result = self._figures(target, done, asked)
        print(table(result, self._metrics, self._percentiles))
        if measured.failed:
            sys.stderr.write(f"jaxllm: {measured.failed} requests failed; the first of their errors:\n")
            sys.stderr.writelines(f"  {error}\n" for error in measured.errors)
        if self._report.save_result or self._report.append_result or self._report.save_detailed:
            file = Path(self._report.result_dir) / (self._report.result_filename or result_name(result))
            more = {} if measured.answers is None else details(measured.answers, of_streams=self._is_stream)
            write_json(file, {**result, **more}, append=self._report.append_result)
            sys.stderr.write(f"wrote {file}\n")
        if self._report.plot is not None:
            from jaxllm.serving.bench.plot import write_plot

            title = f"{target.model}: {result['completed']} requests, {result['request_throughput']:.1f} requests/s"
            write_plot(Path(self._report.plot), measured, title)
            sys.stderr.write(f"wrote {self._report.plot}\n")
        if done.interrupted:
            return INTERRUPTED
        return 0 if measured.completed else 1

    def _figures(self, target: "LoadTarget", done: Run, asked: int) -> dict[str, Any]:
        """Everything the result file has of the run as a whole."""
        from jaxllm.serving.bench.report import probe_figures, summarise, summarise_embeddings

        load, measured = self._load, done.measured
        lists = (self._metrics, self._percentiles)
        ramp = {} if load.ramp_up_strategy is None else {
            "ramp_up_strategy": load.ramp_up_strategy,
            "ramp_up_start_rps": load.ramp_up_start_rps,
            "ramp_up_end_rps": load.ramp_up_end_rps,
            "rps_change_events": done.rates,
        }  # fmt: skip
        figures = (
            summarise(measured, done.duration, *lists, self._goodput)
            if self._is_stream
            else summarise_embeddings(measured, done.duration, *lists)
        )
        lost = asked - measured.completed - measured.failed
        return {
            "date": datetime.now(UTC).astimezone().strftime("%Y%m%d-%H%M%S"),
            "endpoint_type": self._backend,
            "backend": self._backend,
            "label": self._report.label,
            "model_id": target.model,
            "tokenizer_id": self._tokenizer_name,
            "num_prompts": asked,
            **self._metadata,
            "request_rate": "inf" if load.request_rate == float("inf") else load.request_rate,
            "burstiness": load.burstiness if load.burstiness != float("inf") else "inf",
            "max_concurrency": load.max_concurrency,
            **ramp,
            **figures,
            **done.drafts,
            **probe_figures(done.probes),
            **({"interrupted": lost} if done.interrupted else {}),
        }
