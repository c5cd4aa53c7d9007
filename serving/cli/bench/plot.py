"""The figures of a load test as a picture."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.errors import ConfigError
from jaxllm.serving.cli.bench.client import LoadResult
from jaxllm.serving.cli.bench.report import token_times

SHORTEST_MS = 0.01
SHORTEST_INTERVAL = 0.25
"""Seconds over which throughput is averaged, at least."""


def check_plotting() -> None:
    """Raise `ConfigError` when there is nothing to plot with."""
    if find_spec("matplotlib") is None:
        raise ConfigError('--plot needs matplotlib: pip install "jaxllm[bench]"')


def write_plot(file: Path, answers: Sequence[LoadResult], title: str) -> None:
    """Write a PNG of four panels: the three latencies as distributions, and tokens per second over time.

    Raises `ConfigError` when it cannot be written.
    """
    from matplotlib.figure import Figure

    good = [answer for answer in answers if not answer.error]
    figure = Figure(figsize=(11, 7), layout="constrained")
    figure.suptitle(title)
    panels: Any = figure.subplots(2, 2)
    _distribution(panels[0, 0], "Time to first token", [answer.ttft for answer in good])
    _distribution(panels[0, 1], "Between tokens", [gap for answer in good for gap in answer.itls])
    _distribution(panels[1, 0], "End to end", [answer.latency for answer in good])
    _throughput(panels[1, 1], good)
    try:
        figure.savefig(file, format="png", dpi=120)
    except OSError as error:
        raise ConfigError(f"cannot write --plot: {error}") from None


def _distribution(panel: Any, title: str, seconds: Sequence[float]) -> None:
    """The share of values below each one: percentiles can be read off it."""
    # What took no time that was seen has a place on a logarithmic axis too.
    values = np.maximum(np.sort(np.asarray(seconds)) * 1e3, SHORTEST_MS)
    panel.set(title=title, xlabel="ms", ylabel="share below", ylim=(0, 1))
    panel.grid(alpha=0.3, which="both")
    if not len(values):
        return
    panel.step(values, np.arange(1, len(values) + 1) / len(values), where="post", color="tab:blue")
    for percentile, style in ((50, "-"), (90, "--"), (99, ":")):
        at = float(np.percentile(values, percentile))
        panel.axvline(at, linestyle=style, color="tab:orange", label=f"p{percentile}: {at:,.1f} ms")
    panel.axvline(float(values.mean()), linewidth=1, color="grey", label=f"mean: {values.mean():,.1f} ms")
    # A tail that is far out would press everything else to the left edge.
    if values[-1] > 10 * np.median(values):
        panel.set_xscale("log")
    panel.legend(loc="lower right", fontsize=8)


def _throughput(panel: Any, good: Sequence[LoadResult]) -> None:
    panel.set(title="Output", xlabel="s", ylabel="tokens/s")
    panel.grid(alpha=0.3)
    if not good:
        return
    times = np.concatenate([token_times(answer) for answer in good]) - min(answer.start for answer in good)
    # A chunk may hold several tokens.
    weights = np.concatenate(
        [np.full(len(answer.itls) + 1, answer.output_tokens / (len(answer.itls) + 1)) for answer in good]
    )
    end = max(float(times.max()), 1e-3)
    # Shorter intervals show single steps of the engine rather than how much comes.
    bins = np.linspace(0, end, 1 + int(np.clip(end / SHORTEST_INTERVAL, 1, 40)))
    counts, _ = np.histogram(times, bins, weights=weights)
    panel.stairs(counts / (bins[1] - bins[0]), bins, fill=True, alpha=0.6)
    mean = float(weights.sum()) / end
    panel.axhline(mean, color="grey", linewidth=1, label=f"mean: {mean:,.0f} tokens/s")
    panel.set_ylim(bottom=0)
    panel.legend(loc="lower right", fontsize=8)
