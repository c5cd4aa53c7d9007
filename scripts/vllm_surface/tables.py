"""Tables of names: which are present, and why the others are not."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

State = Literal["present", "accepted", "neutral", "absent"]
MEANINGS: Mapping[State, str] = {
    "present": "works as in vLLM",
    "accepted": "accepted; has no effect, or is translated",
    "neutral": "accepted only with values that ask for nothing; others are rejected with a reason",
    "absent": "missing",
}


@dataclass(frozen=True)
class Row:
    """A name of vLLM's."""

    name: str
    state: State
    reason: str = ""


@dataclass(frozen=True)
class Table:
    """Names of one kind."""

    title: str
    rows: tuple[Row, ...]

    @property
    def counts(self) -> Counter[str]:
        """Rows by state."""
        return Counter(row.state for row in self.rows)

    def markdown(self) -> str:
        """The rows that are not simply present, by state and reason."""
        lines = [f"## {self.title}", ""]
        grouped: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            if row.state != "present":
                grouped.setdefault((row.state, row.reason), []).append(f"`{row.name}`")
        for state in MEANINGS:
            found = [(reason, names) for (each, reason), names in grouped.items() if each == state]
            if found:
                lines += [f"{state.capitalize()}: {MEANINGS[state]}.", ""]
                lines += [f"- {', '.join(names)}{f': {reason}' if reason else ''}" for reason, names in sorted(found)]
                lines.append("")
        return "\n".join(lines)


def summary(tables: Iterable[Table]) -> str:
    """One line for each table: how many names have which state."""
    lines = [f"| | all | {' | '.join(MEANINGS)} | without a reason |", f"|---|---|{'---|' * (len(MEANINGS) + 1)}"]
    for table in tables:
        numbers = [str(table.counts[state]) for state in MEANINGS]
        numbers.append(str(sum(row.state == "absent" and not row.reason for row in table.rows)))
        lines.append(f"| {table.title} | {len(table.rows)} | {' | '.join(numbers)} |")
    return "\n".join(lines)
