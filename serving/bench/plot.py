"""The figures of a load test as a picture."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.errors import ConfigError
from jaxllm.serving.bench.measurements import BUCKETS_PER_SECOND, Measurements
from jaxllm.serving.bench.report import values_of

SHORTEST_MS = 0.01
MOST_BARS = 40


def check_plotting(flag: str = "--plot") -> None:
    """Raise `ConfigError`, naming the flag that asked for it, when there is nothing to plot with."""
    if find_spec("matplotlib") is None:
        raise ConfigError(f'{flag} needs matplotlib: pip install "jaxllm[bench]"')


def write_plot(file: Path, measured: Measurements, title: str) -> None:
    """Write a PNG of four panels: the three latencies as distributions, and tokens per second over time.

    Raises `ConfigError` when it cannot be written.
    """
    # An extra of the package; see `check_plotting`.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    figure.suptitle(title)
    panels: Any = figure.subplots(2, 2)
    _distribution(panels[0, 0], "Time to first token", values_of("ttft", measured))
    _distribution(panels[0, 1], "Between tokens", values_of("itl", measured))
    _distribution(panels[1, 0], "End to end", values_of("e2el", measured))
    _throughput(panels[1, 1], measured.token_counts)
    try:
        figure.savefig(file, format="png", dpi=120)
    except OSError as error:
        raise ConfigError(f"cannot write --plot: {error}") from None


def _distribution(panel: Any, title: str, seconds: np.ndarray) -> None:
    """The share of values below each one: percentiles can be read off it."""
    # What took no time that was seen has a place on a logarithmic axis too.
    values = np.maximum(np.sort(seconds) * 1e3, SHORTEST_MS)
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


def _throughput(panel: Any, counts: np.ndarray) -> None:
    """`counts` are the tokens in each bucket of time."""
    panel.set(title="Output", xlabel="s", ylabel="tokens/s")
    panel.grid(alpha=0.3)
    if not len(counts):
        return
    together = -(-len(counts) // MOST_BARS)
    heights = np.pad(counts, (0, -len(counts) % together)).reshape(-1, together).sum(axis=1)
    width = together / BUCKETS_PER_SECOND
    panel.stairs(heights / width, np.arange(len(heights) + 1) * width, fill=True, alpha=0.6)
    mean = float(counts.sum()) / (len(counts) / BUCKETS_PER_SECOND)
    panel.axhline(mean, color="grey", linewidth=1, label=f"mean: {mean:,.0f} tokens/s")
    panel.set_ylim(bottom=0)
    panel.legend(loc="lower right", fontsize=8)
