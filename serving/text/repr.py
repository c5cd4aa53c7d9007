"""How results show themselves to a person: one line each at a prompt, a table in a notebook, rows for an analysis."""

import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from html import escape
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]
"""One line of a table, by the names of its columns."""

MOST_SHOWN = 20
"""Results of a list that are shown; the others are counted."""


class Tabular(Protocol):
    """A result that can be rows of a table."""

    def to_dicts(self) -> list[Row]:
        """One row for each thing that was generated or computed."""
        ...


Result = TypeVar("Result", bound=Tabular)


class Results(list[Result]):
    """A list of results that shows itself briefly and turns into a table.

    In a notebook it is an HTML table. `to_dicts()` is what every library for tables reads.
    """

    def to_dicts(self) -> list[Row]:
        """The rows of all results; `prompt_index` says which result a row belongs to, from 0."""
        return [{"prompt_index": index, **row} for index, result in enumerate(self) for row in result.to_dicts()]

    def to_dataframe(self) -> "pd.DataFrame":
        """The rows of `to_dicts` as a pandas frame. Raises `ImportError` where there is no pandas."""
        try:
            import pandas as pd
        except ImportError:
            message = "to_dataframe() requires pandas: pip install pandas (to_dicts() returns the same rows without it)"
            raise ImportError(message) from None
        return pd.DataFrame(self.to_dicts())

    def __repr__(self) -> str:
        shown = [f" {result!r}," for result in self[:MOST_SHOWN]]
        if len(self) > MOST_SHOWN:
            shown.append(f" ... {len(self) - MOST_SHOWN} more, {len(self)} in total")
        return "\n".join(["[", *shown, "]"]) if len(self) > 1 else f"[{''.join(map(repr, self))}]"

    def _repr_html_(self) -> str:
        rest = f"<p>... {len(self) - MOST_SHOWN} more, {len(self)} in total</p>" if len(self) > MOST_SHOWN else ""
        return html_table(Results(self[:MOST_SHOWN]).to_dicts()) + rest


class Shown:
    """A base of dataclasses whose `repr` is short: fields at their defaults are left out, long lists are cut."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __repr__(self) -> str:
        parts = []
        for each in fields(self):
            value = getattr(self, each.name)
            if each.repr and not (each.default is not MISSING and value is each.default):
                parts.append(f"{each.name}={_SHORT.repr(value)}")
        return f"{type(self).__name__}({', '.join(parts)})"


class ShownInNotebooks(Shown):
    """As `Shown`, and in a notebook a table of the rows of `to_dicts`."""

    __slots__ = ()

    def to_dicts(self) -> list[Row]:
        """Rows of a table."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return html_table(self.to_dicts())


def colored_tokens(places: Iterable[Sequence[tuple[str, float]]]) -> str:
    """Tokens as HTML, from red (improbable) to green, with the probabilities of all choices as a tooltip.

    Each place has texts and log-probabilities, the chosen token first. Colors are translucent, so that the text can be
    read on a light and on a dark page.
    """
    parts = []
    for choices in places:
        if not choices:
            continue
        text, logprob = choices[0]
        likely = sorted(choices, key=lambda choice: -choice[1])
        tooltip = "\n".join(f"{100 * math.exp(each):5.1f} %  {token!r}" for token, each in likely)
        color = f"hsla({round(120 * math.exp(logprob))}, 85%, 45%, 0.35)"
        # A line break alone would be a box of no width.
        shown = escape(text).replace("\n", "&#x23ce;\n") or "&#x2205;"
        parts.append(f"<span style='background:{color}' title='{escape(tooltip)}'>{shown}</span>")
    return f"<div style='white-space:pre-wrap;font-family:monospace'>{''.join(parts)}</div>"


def html_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as HTML. Columns in which no row has anything are left out."""
    listed = list(rows)
    names = list(dict.fromkeys(name for row in listed for name, value in row.items() if value is not None))
    style = "text-align:left;vertical-align:top;white-space:pre-wrap"
    head = "".join(f"<th style='{style}'>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td style='{style}'>{escape(_cell(row.get(name)))}</td>" for name in names) + "</tr>"
        for row in listed
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else _SHORT.repr(value)


class _Short(reprlib.Repr):
    """Values in a repr: texts nearly whole, numbers briefly, long lists with the number of what is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring, self.maxother, self.maxdict = 400, 10_000, 8

    def repr_list(self, value: Sequence[Any], level: int) -> str:
        # The first prompt token has no log-probabilities; those of one token fill a line.
        first = next((item for item in value if item is not None), None)
        most = 2 if isinstance(first, dict) else 6 if isinstance(first, (int, float)) else MOST_SHOWN
        shown = [self.repr1(item, level - 1) for item in value[:most]]
        rest = [f"... {len(value)} in total"] if len(value) > most else []
        return f"[{', '.join([*shown, *rest])}]"

    def repr_dict(self, value: Mapping[Any, Any], level: int) -> str:
        # In its own order: the chosen token comes first.
        shown = [f"{key!r}: {self.repr1(item, level - 1)}" for key, item in islice(value.items(), self.maxdict)]
        rest = [f"... {len(value)} in total"] if len(value) > self.maxdict else []
        return f"{{{', '.join([*shown, *rest])}}}"

    def repr_float(self, value: float, _level: int) -> str:
        return f"{value:.6g}"

    def repr_ndarray(self, value: np.ndarray, _level: int) -> str:
        shown = ", ".join(f"{number:.6g}" for number in value.flat[:4])
        return f"array([{shown}{', ...' if value.size > 4 else ''}], shape={value.shape}, {value.dtype})"


_SHORT = _Short()
