"""`jaxllm plan`: whether a model fits, what it takes and how fast it may be, without the devices and the weights."""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from jaxllm.flags import FlagParser
from jaxllm.serving.cli.target_flags import add_engine_flags_of_target, add_target_flags, find_config

if TYPE_CHECKING:
    # It loads JAX, two seconds that --help and wrong flags need not wait for.
    from jaxllm.planning.report import DeviceMemory, Report, Step
    from jaxllm.planning.roofline import StepEstimate

HELP = "Estimate whether a model fits given devices, how much memory it needs, and how fast it runs."
USAGE = "[MODEL] [--device NAME] [flags]"
EXAMPLES = """examples:
  jaxllm plan path/to/llama-3-8b --device v6e                            one chip
  jaxllm plan path/to/llama-3-70b --device v6e --topology 2x4 --tp 8     eight
  jaxllm plan path/to/llama-3-70b --device v6e --tp 4 --pp 2             two stages of four
  jaxllm plan Qwen/Qwen3-0.6B --device v5e --max-model-len 8K --json

Only config.json of the model is read. Steps are compiled for the chip by its own compiler, which needs no chip
(pip install 'jax[tpu]') and reports the memory. Times are estimates."""


def add_arguments(parser: FlagParser) -> None:
    """Declare the model, the devices, how to print, and every engine option."""
    add_target_flags(parser, "plan")
    parser.epilog = EXAMPLES
    parser.add_argument(
        "--all-buckets",
        action="store_true",
        help="Compile every step shape instead of two, and every size of images instead of the largest.",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON, with sizes in bytes and times in seconds.")
    add_engine_flags_of_target(parser)


def run(args: argparse.Namespace) -> int:
    """Print the plan; 0 also when it does not fit, which is an answer. Errors are raised."""
    resolved, target = find_config(args)
    # It loads JAX, two seconds that --help and wrong flags need not wait for.
    from jaxllm.planning.report import make_report

    report = make_report(resolved, target, all_buckets=args.all_buckets, say=_say())
    text = (
        msgspec.json.format(msgspec.json.encode(report), indent=2).decode() if args.json else "\n".join(_text(report))
    )
    sys.stdout.write(text + "\n")
    return 0


def _say() -> Callable[[str], None]:
    """Shows what is being done, to people only."""
    return (lambda text: print(text, "...", file=sys.stderr, flush=True)) if sys.stderr.isatty() else (lambda _: None)


def _text(report: "Report") -> Iterator[str]:
    devices = "1 device" if report.num_devices == 1 else f"{report.num_devices} devices"
    types = (
        report.dtype if report.kv_cache_dtype == report.dtype else f"{report.dtype}, KV cache {report.kv_cache_dtype}"
    )
    yield f"{report.model} on {report.device}, {devices}: {types}, attention {report.attention_backend}"
    yield f"steps of up to {report.max_num_seqs:,} requests and {report.max_num_batched_tokens:,} tokens"
    if report.stages:
        each = -(-report.max_num_seqs // len(report.stages))
        yield f"{len(report.stages)} stages and as many steps in flight, each with up to {each:,} of the decodes"
    yield ""
    if report.fits:
        yield (
            f"fits: the KV cache holds {report.kv_tokens:,} tokens, {report.max_concurrency:.1f} requests of "
            f"{report.max_model_len:,} at once"
            + (f", and {report.state_snapshots:,} snapshots of recurrent states" if report.memory.recurrent else "")
        )
    else:
        yield f"does not fit: {report.reason}"
        yield from (f"  this would fit: {change}" for change in report.advice)
        if not report.advice:
            yield "  no single option makes it fit: choose a chip with more memory or a smaller model"
    yield ""
    yield from _memory(report)
    yield ""
    yield from _tiers(report)
    yield from _steps(report)
    yield from _images(report)
    yield from _sound(report)


def _tiers(report: "Report") -> Iterator[str]:
    """Room for copies of KV pages."""
    tiers = report.tiers
    if tiers is None:
        return
    rooms = [f"host memory for {tiers.host_tokens:,} tokens"]
    sessions = [f"{tiers.host_tokens / report.max_model_len:,.1f}"]
    if tiers.disk_tokens:
        rooms.append(f"files for {tiers.disk_tokens:,}")
        sessions.append(f"{tiers.disk_tokens / report.max_model_len:,.1f}")
    yield (
        f"copies of KV pages: {tiers.token_bytes / 1024:,.1f} KiB per token; {' and '.join(rooms)}, which is "
        f"{' and '.join(sessions)} sessions of {report.max_model_len:,}"
    )
    if tiers.break_even is not None:
        yield f"copies pay where they are faster than prefill: {tiers.break_even / 1e9:,.2f} GB/s, an estimate"
    yield ""


def _images(report: "Report") -> Iterator[str]:
    """The programs that encode images."""
    if not report.images:
        return
    yield ""
    yield f"images: the devices hold {report.media_tokens:,} of their tokens"
    yield "patches up to      tokens   compiled in   temporaries     by the compiler"
    for each in report.images:
        line = f"  {each.patches:11,} {each.rows:11,}"
        if each.compile_seconds is None or each.temporaries is None:
            yield line
            continue
        time = "" if each.seconds is None else f"{each.seconds * 1000:13.2f} ms"
        yield f"{line} {each.compile_seconds:11.1f} s {each.temporaries / 2**30:9.2f} GiB {time}".rstrip()
    yield "By the compiler: XLA's own estimate of an image, without attention."


def _sound(report: "Report") -> Iterator[str]:
    """The program that encodes sound."""
    sound = report.sound
    if sound is None:
        return
    yield ""
    tokens = "has keys and values" if not sound.rows else f"becomes up to {sound.rows:,} tokens"
    if sound.rows:
        tokens += f"; the devices hold {report.media_tokens:,}"
    yield f"sound: a window of {sound.frames:,} frames {tokens}"
    time = "" if sound.seconds is None else f", {sound.seconds * 1000:.2f} ms by the compiler, without attention"
    yield f"  compiled in {sound.compile_seconds:.1f} s, {sound.temporaries / 2**30:.2f} GiB of temporaries{time}"


def _memory(report: "Report") -> Iterator[str]:
    if not report.stages:
        yield "memory of each device, GiB"
        yield from _parts(report.memory)
    for number, stage in enumerate(report.stages):
        devices = "1 device" if stage.num_devices == 1 else f"{stage.num_devices} devices"
        yield f"memory of each device of stage {number}, layers {stage.start} to {stage.stop - 1} on {devices}, GiB"
        yield from _parts(stage.memory)


def _parts(memory: "DeviceMemory") -> Iterator[str]:
    unknown = not memory.temporaries and not memory.code
    parts = {
        "weights": memory.weights,
        "KV cache": memory.kv_cache,
        **({"recurrent": memory.recurrent} if memory.recurrent else {}),
        "state": memory.state,
        "temporaries": None if unknown else memory.temporaries,
        "code": None if unknown else memory.code,
        "free": memory.free,
        "total": memory.total,
    }
    for name, size in parts.items():
        yield f"  {name:12}{'not compiled' if size is None else f'{size / 2**30:8.2f}'}"


def _steps(report: "Report") -> Iterator[str]:
    yield "steps            compiled in  estimated, ms  = matrices + attention +  links           tokens/s"
    yield from map(_step, report.steps)
    estimates = [step.estimate for step in report.steps if step.estimate]
    if not estimates:
        yield "No estimates: the peak figures of this device are unknown."
        return
    yield (
        "Estimates, likely too low: bytes and operations divided by the chip's "
        f"peaks{_attention(estimates)}{_links(report.num_devices, estimates)}."
    )
    yield (
        f"Decodes have {report.decode_context:,} tokens of context; prefill is the beginning of one prompt. "
        "Operations other than matrix products are not counted."
    )
    yield from _drafts_table(report)
    yield from _stage_table(report)
    yield from _compiler_table(report)


def _drafts_table(report: "Report") -> Iterator[str]:
    """Steps with drafts."""
    if not report.drafts:
        return
    yield ""
    yield f"steps with {report.drafts[0].drafts} drafts for each request"
    for each in report.drafts:
        yield (
            f"  {each.requests:5} requests {each.seconds * 1000:10.2f} ms, {each.seconds / each.seconds_without:.2f} "
            f"of one without; faster if more than {each.least_accepted:.2f} of a request's are right"
        )


def _stage_table(report: "Report") -> Iterator[str]:
    """The times of steps in each stage."""
    if not report.stages:
        return
    yield ""
    yield "in each stage, ms"
    for steps in zip(*(stage.steps for stage in report.stages), strict=True):
        times = [step.estimate.seconds * 1000 for step in steps if step.estimate]
        yield f"  {steps[0].tokens:5} tokens {''.join(f'{time:10.2f}' for time in times)}"
    yield (
        "A step passes all stages: its latency is the sum of their times and of the transfers between them. With one "
        "step in flight per stage, the slowest stage determines the tokens/s. Time of the host is not counted."
    )


def _compiler_table(report: "Report") -> "Iterator[str]":
    """The compiler's estimates of the same steps, as far as they were compiled."""
    assign_pipeline_stages = [step for stage in report.stages for step in stage.steps]
    steps = assign_pipeline_stages or report.steps
    known = [(step, step.compiler, step.estimate) for step in steps if step.compiler and step.estimate]
    if not known:
        return
    yield ""
    yield "by the compiler, ms      = operations +  links + copies + attention    over the estimate"
    if report.stages:
        yield "  (stage after stage)"
    for step, found, guess in known:
        parts = (found.seconds, found.operations, found.links, found.copies, found.attention)
        times = [f"{part * 1000:{width}.2f}" for part, width in zip(parts, (10, 13, 9, 9, 12), strict=True)]
        yield f"  {step.tokens:5} tokens {''.join(times)} {found.seconds / guess.seconds:19.1f} x"
    yield (
        "Operations: XLA's own estimate for the same program. Links: time spent waiting for collectives, at a ring's "
        "bandwidth and 1 us per hop. Attention as above; other kernels are not counted."
    )


def _attention(estimates: "Sequence[StepEstimate]") -> str:
    shares = {estimate.work: estimate.attention_share for estimate in estimates}
    known = [f"{share:.0%} of the peaks ({work})" for work, share in shares.items() if share is not None]
    return f"; attention reaches {', '.join(known)} by the static model" if known else ""


def _links(devices: int, estimates: "Sequence[StepEstimate]") -> str:
    if devices == 1:
        return ""
    unknown = estimates[0].communication is None
    return "; communication between devices is not counted" if unknown else "; two all-reduces per layer use the links"


def _step(step: "Step") -> str:
    seconds = "" if step.compile_seconds is None else f"{step.compile_seconds:.1f} s"
    line = f"  {step.tokens:5} x {step.requests:<4} {seconds:>14}"
    found = step.estimate
    if found is None:
        return line.rstrip()
    parts = (found.seconds, found.matrices, found.attention, found.communication)
    times = [
        f"{'?' if part is None else format(part * 1000, '.2f'):>{width}}"
        for part, width in zip(parts, (15, 13, 12, 8), strict=True)
    ]
    return f"{line}{''.join(times)} {found.tokens_per_second:18,.0f}  {found.work}, {found.bound} bound"
