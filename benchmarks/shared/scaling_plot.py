"""The picture of how times grow: one panel per quantity, logarithmic on both axes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Curve(Protocol):
    """What is plotted, see `benchmarks.scaling.Sweep`."""

    @property
    def name(self) -> str:
        """Of the quantity."""
        ...

    @property
    def unit(self) -> str:
        """Label of the horizontal axis."""
        ...

    @property
    def values(self) -> Sequence[int]:
        """Along the horizontal axis."""
        ...

    @property
    def milliseconds(self) -> Sequence[float]:
        """Along the vertical axis."""
        ...

    @property
    def work(self) -> Sequence[float]:
        """Arithmetic; only its growth is shown."""
        ...

    @property
    def slope(self) -> float:
        """Of the upper end."""
        ...

    @property
    def work_slope(self) -> float:
        """Of the upper end."""
        ...


def plot(curves: Sequence[Curve], path: Path) -> None:
    """Write a PNG: measured times as dots, and the growth of the work as a dashed line through the last of them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 7.5), layout="constrained")
    panels = figure.subplots(2, 3).flatten()
    for panel, curve in zip(panels, curves, strict=False):
        times, work = curve.milliseconds, curve.work
        panel.loglog(curve.values, times, "o-", color="tab:blue", label=f"measured, slope {curve.slope:.2f}")
        panel.loglog(
            curve.values,
            [times[-1] * each / work[-1] for each in work],
            "--",
            color="tab:gray",
            label=f"arithmetic, slope {curve.work_slope:.2f}",
        )
        _label(panel, curve.name, curve.unit, "ms")
        # Room for the legend, and flat lines shown flat.
        panel.set_ylim(min(times) / 3, max(times) * 6)
        panel.legend(loc="upper left", fontsize=9)
    batch = curves[0]
    panels[-1].loglog(
        batch.values,
        [value / time * 1e3 for value, time in zip(batch.values, batch.milliseconds, strict=True)],
        "o-",
        color="tab:green",
    )
    _label(panels[-1], "throughput", batch.unit, "output tokens / s")
    figure.savefig(path, dpi=90)


def _label(panel: object, title: str, horizontal: str, vertical: str) -> None:
    panel.set_title(title)  # type: ignore[attr-defined]
    panel.set_xlabel(horizontal)  # type: ignore[attr-defined]
    panel.set_ylabel(vertical)  # type: ignore[attr-defined]
    panel.grid(visible=True, which="major", alpha=0.4)  # type: ignore[attr-defined]
