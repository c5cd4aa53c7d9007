"""How long streams of `scripts/chaos` stood still: what starts of engines took of it, and what the rest took."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

import numpy as np

_END = re.compile(r".*(?:; restarting it|; next try)(?: in ([\d.]+) s)?$")
_BACK = re.compile(r".*the engine is back after [\d.]+ s$")
_INTERRUPTED = re.compile(r".*\d+ requests of the engine that ended continue")
_MOMENT = 1.0


@dataclass(frozen=True)
class Start:
    """An engine that took the place of another one: seconds since the epoch, and how long it took."""

    ready: float
    seconds: float
    """From the end of the one before, or of the pause after that; starts that failed are not counted."""


def starts_in(log: str) -> list[Start]:
    """What the server's log says of starts of its only engine. Several processes may say it, within a moment."""
    found: list[Start] = []
    begun = 0.0
    for line in log.splitlines():
        if end := _END.match(line):
            begun = _seconds(line) + float(end[1] or 0)
        elif _BACK.match(line) and (not found or _seconds(line) - found[-1].ready > _MOMENT):
            found.append(Start(_seconds(line), _seconds(line) - begun))
    return found


def interruptions_in(log: str) -> int:
    """How often an engine ended that had requests. Each API server process says so, within a moment."""
    times = sorted(_seconds(line) for line in log.splitlines() if _INTERRUPTED.match(line))
    return sum(later - earlier > _MOMENT for earlier, later in pairwise((-_MOMENT, *times)))


def told(calm: Sequence[tuple[float, float]], gaps: Sequence[tuple[float, float]], log: str) -> Iterator[str]:
    """For people to read. Gaps are from and to, in seconds since the epoch: without attacks, and with them."""
    starts = starts_in(log)
    yield f"{interruptions_in(log)} engines ended that had requests"
    yield f"longest gap {_longest(gaps):.1f} s, {_longest(calm):.1f} s before the attacks"
    if starts:
        yield f"{len(starts)} starts of engines: {_spread([each.seconds for each in starts])}"
        begun, ended = np.array(gaps).reshape(-1, 2).T
        after = [end for each in starts for end in ended[(begun < each.ready) & (each.ready < ended)] - each.ready]
        if after:
            yield f"from an engine that is back to the next event of {len(after)} streams: {_spread(after)}"


def _seconds(line: str) -> float:
    """The time of a line, since the epoch."""
    return datetime.fromisoformat(line[:23]).timestamp()


def _longest(gaps: Sequence[tuple[float, float]]) -> float:
    return max((end - begin for begin, end in gaps), default=0.0)


def _spread(seconds: Sequence[float]) -> str:
    median, most = np.quantile(seconds, (0.5, 0.95))
    return f"median {median:.2f} s, 95 % {most:.2f} s, longest {max(seconds):.2f} s"
