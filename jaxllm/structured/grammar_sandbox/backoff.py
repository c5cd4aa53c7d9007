"""How long to wait before something that keeps dying is begun again."""

import time
from collections.abc import Callable


class Backoff:
    """Doubles the wait with each death, up to a limit; none before the first."""

    def __init__(self, first: float, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`first` and `most` are seconds: of the wait after the second death, and of any."""
        self._first, self._most, self._clock = first, most, clock
        self._deaths = 0
        self._since = 0.0

    def died(self) -> float:
        """Count a death; the seconds to wait."""
        if self._deaths == 0:
            self._since = self._clock()
        self._deaths += 1
        return 0.0 if self._deaths == 1 else min(self._most, self._first * 2.0 ** min(self._deaths - 2, 30))

    def lives(self) -> None:
        """It works."""
        self._deaths = 0

    def hopeless(self, deaths: int, seconds: float) -> bool:
        """Whether it has died so often, and for so long."""
        return self._deaths >= deaths and self._clock() - self._since >= seconds
