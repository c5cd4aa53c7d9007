"""`jaxllm bench sweep plot`: curves of what a sweep measured."""

import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxllm.errors import ConfigError, nearest
from jaxllm.serving.bench.sweep.options import PlotOptions
from jaxllm.serving.bench.sweep.parameters import file_name
from jaxllm.serving.bench.sweep.runs import SUMMARY

Result = Mapping[str, Any]
Groups = dict[tuple[str, ...], list[Result]]

# Longer ones first: they begin with shorter ones.
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt,
}  # fmt: skip


def read_results(folder: Path) -> list[Result]:
    """Every result below a folder. Raises `ConfigError` where there are none."""
    found: list[Result] = []
    for file in sorted(folder.rglob(SUMMARY)):
        try:
            found += json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read {file}: {error}") from None
    if not found:
        raise ConfigError(f"found no results of `jaxllm bench sweep serve` in {str(folder)!r}")
    return found


def selected(results: Iterable[Result], options: PlotOptions) -> Sequence[Result]:
    """The results that `filter_by` leaves, rounded as `bin_by` says. Raises `ConfigError`."""
    found = [dict(result) for result in results]
    for condition in _parts(options.filter_by):
        sign = next((sign for sign in _COMPARISONS if sign in condition), None)
        if sign is None:
            raise ConfigError(f"filter_by={condition!r}: expected one of {', '.join(_COMPARISONS)}")
        name, _, wanted = condition.partition(sign)
        found = [each for each in found if _compare(value_of(each, name), _COMPARISONS[sign], wanted, condition)]
    for rule in _parts(options.bin_by):
        name, sign, size = rule.partition("%")
        width = _number(size)
        if not sign or not width or width < 0:
            raise ConfigError(f"bin_by={rule!r}: expected NAME%WIDTH")
        for each in found:
            each[name] = number_of(each, name) // width * width
    if not found:
        raise ConfigError("filter_by excludes all results")
    return found


def value_of(result: Result, name: str) -> Any:
    """A figure or flag of a result. Raises `ConfigError` that names the nearest ones."""
    if name not in result:
        raise ConfigError(f"the results have no {name!r}{nearest(name, result)}")
    return result[name]


def number_of(result: Result, name: str) -> float:
    """The value as a number; JSON has infinity as a text."""
    number = _number(value_of(result, name))
    if number is None:
        raise ConfigError(f"{name}={result[name]!r} is not a number")
    return number


def grouped(results: Sequence[Result], names: str) -> Groups:
    """The results by their values of these names, which commas divide."""
    found: Groups = {}
    for result in results:
        found.setdefault(tuple(f"{name}={value_of(result, name)}" for name in _parts(names)), []).append(result)
    return found


def curve(results: Sequence[Result], options: PlotOptions) -> list[tuple[float, float]]:
    """The points of a curve from left to right: the mean of the runs that share a place."""
    places: dict[float, list[float]] = {}
    for result in results:
        places.setdefault(number_of(result, options.var_x), []).append(number_of(result, options.var_y))
    return [(x, sum(values) / len(values)) for x, values in sorted(places.items())]


def draw(folder: Path, options: PlotOptions) -> list[Path]:
    """Write a picture for each group; their files, which a dry run only names. Raises `ConfigError`."""
    results = selected(read_results(folder), options)
    files = []
    for names, group in grouped(results, options.fig_by).items():
        file = folder / options.fig_dir / f"{file_name('-'.join([options.fig_name, *names]))}.png"
        files.append(file)
        rows = grouped(group, options.row_by)
        panels = {row: grouped(some, options.col_by) for row, some in rows.items()}
        curves = {
            (row, column): {key: curve(some, options) for key, some in grouped(part, options.curve_by).items()}
            for row, columns in panels.items()
            for column, part in columns.items()
        }
        if not options.dry_run:
            _write(file, curves, options)
    return files


def _write(file: Path, curves: Mapping[tuple[Any, Any], Mapping[Any, Any]], options: PlotOptions) -> None:
    """A picture of panels in rows and columns."""
    # An extra of the package; see `check_plotting`.
    from matplotlib.figure import Figure

    rows = list(dict.fromkeys(row for row, _ in curves))
    columns = list(dict.fromkeys(column for _, column in curves))
    figure = Figure(figsize=(1 + 5 * len(columns), 4 * len(rows)), layout="constrained")
    panels: Any = figure.subplots(len(rows), len(columns), squeeze=False)
    for (row, column), found in curves.items():
        panel = panels[rows.index(row), columns.index(column)]
        panel.set(title="\n".join([*row, *column]), xlabel=options.var_x, ylabel=options.var_y)
        panel.grid(alpha=0.3)
        for names, points in found.items():
            panel.plot(*zip(*points, strict=True), marker="o", label=", ".join(names))
        try:
            panel.set(
                **{
                    f"{axis}scale": scale
                    for axis, scale in (("x", options.scale_x), ("y", options.scale_y))
                    if scale is not None
                }
            )
        except ValueError as error:
            raise ConfigError(f"scale_x, scale_y: {error}") from None
        if any(found):
            panel.legend(fontsize=8)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, format="png", dpi=120)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error}") from None


def _compare(value: Any, compare: Callable[[Any, Any], bool], wanted: str, condition: str) -> bool:
    text = wanted.strip().strip("'\"")
    left, right = _number(value), _number(text)
    if left is not None and right is not None:
        return compare(left, right)
    if compare not in (operator.eq, operator.ne):
        raise ConfigError(f"filter_by={condition!r}: {value!r} and {text!r} are not both numbers")
    return compare(str(value), text)


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _parts(names: str) -> list[str]:
    return [part.strip() for part in names.split(",") if part.strip()]
