"""`jaxllm bench serve`: load for any OpenAI server, and what it makes of it."""

import argparse
import asyncio
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxllm.errors import ConfigError, EngineError, nearest
from jaxllm.flags import FlagParser, integer, json_object
from jaxllm.serving.cli.tls import add_tls_flags

if TYPE_CHECKING:
    # These load numpy, which a wrong flag should not have to wait for.
    import numpy as np

    from jaxllm.serving.cli.bench.client import LoadResult, LoadTarget
    from jaxllm.serving.cli.bench.workload import LoadRequest

HELP = "Send requests to an OpenAI server and report throughput and latencies. Flags and figures are vLLM's."
EXAMPLES = """examples:
  jaxllm bench serve                                            1000 random prompts, all at once
  jaxllm bench serve --request-rate 4 --num-prompts 200         4 requests per second, as a Poisson process
  jaxllm bench serve --max-concurrency 32 --random-input-len 512 --random-output-len 64 --ignore-eos
  jaxllm bench serve --dataset-name file --dataset-path prompts.txt --endpoint /v1/chat/completions
  jaxllm bench serve --base-url http://gpu-box:8000 --save-result --plot result.png"""


def add_arguments(parser: FlagParser) -> None:
    """Declare the server, the load and the report."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    _add_server(parser)
    _add_load(parser)
    _add_report(parser)


def _add_server(parser: FlagParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument("--base-url", metavar="URL", help="Its address without a path; instead of --host and --port.")
    group.add_argument("--host", default="127.0.0.1", help="Its host (default: %(default)s).")
    group.add_argument("--port", type=integer, default=8000, help="Its port (default: %(default)s).")
    group.add_argument("--endpoint", default="/v1/completions", help="What to call (default: %(default)s).")
    group.add_argument("--api-key", metavar="TEXT", help="Its key (or $JAXLLM_API_KEY, or $OPENAI_API_KEY).")
    add_tls_flags(group)
    group.add_argument("--model", metavar="TEXT", help="Name of the model (default: the server's first).")
    group.add_argument("--tokenizer", metavar="TEXT", help="Tokenizer for random prompts (default: the model's).")


def _add_load(parser: FlagParser) -> None:
    group = parser.add_argument_group("load")
    group.add_argument(
        "--dataset-name", choices=("random", "file", "custom"), default="random", help="The prompts' kind."
    )
    group.add_argument(
        "--dataset-path",
        metavar="FILE",
        help="Prompts for --dataset-name file (or custom, as vLLM calls it): one per line, or in a *.jsonl objects "
        "with prompt or messages, and output_tokens.",
    )
    group.add_argument("--num-prompts", type=integer, default=1000, help="Requests to send (default: %(default)s).")
    group.add_argument("--request-rate", type=float, default=float("inf"), help="Per second (default: all at once).")
    group.add_argument(
        "--burstiness",
        type=float,
        default=1.0,
        help="1: gaps as of a Poisson process; less: in bursts; more: evenly (default: %(default)s).",
    )
    group.add_argument("--max-concurrency", type=integer, help="Most requests under way at once (default: no limit).")
    group.add_argument("--random-input-len", type=integer, default=1024, help="Tokens in (default: %(default)s).")
    group.add_argument("--random-output-len", type=integer, default=128, help="Tokens out (default: %(default)s).")
    group.add_argument(
        "--random-range-ratio",
        type=float,
        default=0.0,
        help="Lengths vary by this share, up and down, in [0, 1) (default: %(default)s).",
    )
    group.add_argument("--seed", type=integer, default=0, help="Of prompts and times (default: %(default)s).")
    group.add_argument("--ignore-eos", action="store_true", help="Let answers be as long as asked for.")
    group.add_argument(
        "--temperature", type=float, default=0.0, help="Of sampling; 0 is greedy (default: %(default)s)."
    )
    group.add_argument("--extra-body", type=json_object, metavar="JSON", help="More fields for every request.")
    group.add_argument(
        "--num-warmups", type=integer, default=1, help="Requests before, not counted (default: %(default)s)."
    )


def _add_report(parser: FlagParser) -> None:
    group = parser.add_argument_group("report")
    group.add_argument(
        "--percentile-metrics",
        default="ttft,tpot,itl,e2el",
        metavar="LIST",
        help="What to show (default: %(default)s).",
    )
    group.add_argument("--metric-percentiles", default="50,90,99", metavar="LIST", help="(default: %(default)s)")
    group.add_argument("--save-result", action="store_true", help="Write the figures to a JSON file.")
    group.add_argument("--save-detailed", action="store_true", help="In it, also every single request.")
    group.add_argument("--result-dir", default=".", metavar="FOLDER", help="Where (default: here).")
    group.add_argument("--result-filename", metavar="NAME", help="Its name (default: from model, rate and time).")
    group.add_argument("--plot", metavar="PNG", help="Write a picture of the distributions and of the throughput.")
    group.add_argument("--disable-tqdm", action="store_true", help="No progress bar.")


def run(args: argparse.Namespace) -> int:
    """Send, wait, report; 1 when every request failed."""
    metrics, percentiles = _lists(args)
    if args.plot is not None:
        from jaxllm.serving.cli.bench.plot import check_plotting

        check_plotting()
    import numpy as np

    target, root = _target(args)
    requests = _requests(args, target, root, np.random.default_rng(args.seed))
    answers, duration = asyncio.run(_load(args, target, requests, np.random.default_rng(args.seed + 1)))
    return _report(args, target, answers, duration, metrics, percentiles)


def _lists(args: argparse.Namespace) -> tuple[list[str], list[float]]:
    """The metrics and the percentiles to show; also checks the numbers. Raises `ConfigError`."""
    for name, low in {"num_prompts": 1, "random_input_len": 1, "random_output_len": 1, "num_warmups": 0}.items():
        if getattr(args, name) < low:
            raise ConfigError(f"{name}={getattr(args, name)}: must be at least {low}")
    if not (args.request_rate > 0 and args.burstiness > 0 and 0 <= args.random_range_ratio < 1):
        raise ConfigError("request_rate and burstiness must be greater than 0, and random_range_ratio in [0, 1)")
    if args.max_concurrency is not None and args.max_concurrency < 1:
        raise ConfigError("max_concurrency: must be at least 1")
    from jaxllm.serving.cli.bench.report import METRICS

    metrics = [part.strip() for part in args.percentile_metrics.split(",") if part.strip()]
    for name in metrics:
        if name not in METRICS:
            raise ConfigError(f"percentile_metrics: no metric {name!r}{nearest(name, METRICS)}")
    try:
        percentiles = [float(part) for part in args.metric_percentiles.split(",") if part.strip()]
    except ValueError:
        percentiles = [-1.0]
    if not all(0 <= percentile <= 100 for percentile in percentiles):
        raise ConfigError(f"metric_percentiles={args.metric_percentiles!r}: expected numbers from 0 to 100")
    return metrics, percentiles


def _target(args: argparse.Namespace) -> tuple["LoadTarget", str]:
    """Where to send, and what the model's tokenizer is found by. Raises `EngineError` when no server is there."""
    from jaxllm.serving.cli.api_client import ApiClient
    from jaxllm.serving.cli.bench.client import LoadTarget

    host = f"[{args.host}]" if ":" in args.host else args.host
    base = (args.base_url or f"http://{host}:{args.port}").rstrip("/")
    key = args.api_key or os.environ.get("JAXLLM_API_KEY") or os.environ.get("OPENAI_API_KEY")
    tls = {"cacert": args.cacert, "insecure": args.insecure}
    with ApiClient(base + args.endpoint.partition("/completions")[0].removesuffix("/chat"), key, **tls) as client:
        model, root = client.find_model(args.model)
    extra: dict[str, Any] = {"temperature": args.temperature, **(args.extra_body or {})}
    if args.ignore_eos:
        extra["ignore_eos"] = True
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    context = client.tls_context
    return LoadTarget(url=base + args.endpoint, model=model, headers=headers, extra=extra, tls=context), root


def _requests(
    args: argparse.Namespace, target: "LoadTarget", root: str, rng: "np.random.Generator"
) -> list["LoadRequest"]:
    from jaxllm.serving.cli.bench.workload import random_requests, read_requests

    if args.dataset_name != "random":
        if args.dataset_path is None:
            raise ConfigError("--dataset-name file needs --dataset-path")
        found = read_requests(args.dataset_path, args.num_prompts, args.random_output_len, rng)
        if not target.is_chat and any(
            isinstance(item.prompt, list) and isinstance(item.prompt[0], dict) for item in found
        ):
            raise ConfigError(f"{args.dataset_path} holds messages: they need --endpoint /v1/chat/completions")
        return found
    from jaxllm.config import ModelOptions
    from jaxllm.serving.llm.loading import load_tokenizer

    try:
        tokenizer = load_tokenizer(ModelOptions(model=args.tokenizer or root))
    except ConfigError as error:
        raise ConfigError(f"random prompts need the model's tokenizer; give it with --tokenizer ({error})") from None
    vocabulary = [token for token in range(tokenizer.size) if token not in tokenizer.added_tokens]
    lengths = (args.random_input_len, args.random_output_len, args.random_range_ratio)
    decode = tokenizer.decode if target.is_chat else None
    return random_requests(args.num_prompts, *lengths, vocabulary, rng, decode)


async def _load(
    args: argparse.Namespace, target: "LoadTarget", requests: list["LoadRequest"], rng: "np.random.Generator"
) -> tuple[list["LoadResult"], float]:
    """The answers, and how long they took together in seconds."""
    from tqdm import tqdm

    from jaxllm.serving.cli.bench.client import run_load
    from jaxllm.serving.cli.bench.workload import send_times

    if args.num_warmups:
        first = await run_load(target, requests[: args.num_warmups], [0.0] * min(args.num_warmups, len(requests)))
        if all(answer.error for answer in first):
            raise EngineError(f"the first request failed: {first[0].error}")
    times = send_times(len(requests), args.request_rate, args.burstiness, rng)
    with tqdm(total=len(requests), disable=args.disable_tqdm or None, dynamic_ncols=True) as bar:
        start = time.perf_counter()
        answers = await run_load(target, requests, times, args.max_concurrency, lambda _: bar.update())
        return answers, time.perf_counter() - start


def _report(
    args: argparse.Namespace,
    target: "LoadTarget",
    answers: list["LoadResult"],
    duration: float,
    metrics: list[str],
    percentiles: list[float],
) -> int:
    from jaxllm.serving.cli.bench.report import details, summarise, table

    now = datetime.now(UTC)
    rate = "inf" if args.request_rate == float("inf") else args.request_rate
    result: dict[str, Any] = {
        "date": now.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "openai-chat" if target.is_chat else "openai",
        "model_id": target.model,
        "tokenizer_id": args.tokenizer,
        "num_prompts": args.num_prompts,
        "request_rate": rate,
        "burstiness": args.burstiness,
        "max_concurrency": args.max_concurrency,
        **summarise(answers, duration, metrics, percentiles),
    }
    print(table(result, metrics, percentiles))
    failed = [answer for answer in answers if answer.error]
    for answer in failed[:5]:
        print(f"failed: {answer.error}")
    if args.save_result or args.save_detailed:
        name = args.result_filename or f"jaxllm-{rate}qps-{Path(target.model).name}-{result['date']}.json"
        saved = {**result, **details(answers)} if args.save_detailed else result
        _write(Path(args.result_dir) / name, json.dumps(saved, indent=1))
    if args.plot is not None:
        from jaxllm.serving.cli.bench.plot import write_plot

        title = f"{target.model}: {result['completed']} requests, {result['output_throughput']:.1f} tokens/s"
        write_plot(Path(args.plot), answers, title)
        print(f"wrote {args.plot}")
    return 1 if len(failed) == len(answers) else 0


def _write(file: Path, text: str) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write the result: {error}") from None
    print(f"wrote {file}")
