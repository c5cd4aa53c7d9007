"""How the layers of a model repeat."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache

LONGEST_PERIOD = 16
"""Most layers in a pattern that is looked for; those of known models have at most 8."""


@dataclass(frozen=True)
class Segment:
    """Layers from `start` on: `period` of them, which may differ from one another, `repeats` times."""

    start: int
    period: int
    repeats: int

    def layers(self, place: int) -> range:
        """The layers that are number `place` of their period: one for each repeat."""
        return range(self.start + place, self.start + self.period * self.repeats, self.period)


def segments_of(plans: Sequence[Hashable]) -> tuple[Segment, ...]:
    """Segments of layers with these plans, such that the sum of their periods is smallest, then their number.

    So many layers are compiled. Five windows and then one layer without, again and again, are one segment of period 6;
    some dense layers before those with experts are two of period 1.
    """
    count = len(plans)

    def repeats(start: int, period: int) -> int:
        end = start + period
        while end < count and plans[end] == plans[end - period]:
            end += 1
        return (end - start) // period

    @cache
    def best(start: int) -> tuple[int, int, tuple[Segment, ...]]:
        if start == count:
            return 0, 0, ()
        found = []
        for period in range(1, min(LONGEST_PERIOD, count - start) + 1):
            most = repeats(start, period)
            cost, number, others = best(start + period * most)
            found.append((cost + period, number + 1, (Segment(start, period, most), *others)))
        return min(found, key=lambda each: each[:2])

    # From the end on, or a deep model would recurse as deeply.
    for start in range(count, -1, -1):
        best(start)
    return best(0)[2]
