"""The memory of a server's processes over time, and how fast it grows."""

import time
from dataclasses import dataclass, field

import numpy as np
import psutil
from scipy import stats

from jaxllm import child

BLOCK_SECONDS = 60.0
"""What is left of a straight line hangs together for about so long: the bootstrap draws blocks of this length."""

RESAMPLES = 2000


@dataclass(frozen=True)
class Slope:
    """MiB per hour, with the bounds of its interval of 95 %."""

    value: float
    low: float
    high: float


@dataclass
class MemorySeries:
    """Samples of one process: seconds since the start, resident (RSS) and unshared memory (USS) in MiB."""

    name: str
    seconds: list[float] = field(default_factory=list)
    rss: list[float] = field(default_factory=list)
    uss: list[float] = field(default_factory=list)


class MemorySampler:
    """Samples a process and its descendants; those that come and go have series of their own."""

    def __init__(self, pid: int, first_name: str) -> None:
        self._process = psutil.Process(pid)
        self._first_name = first_name
        self._began = time.monotonic()
        self._series: dict[int, MemorySeries] = {}

    def sample(self) -> None:
        """Take a sample of every process."""
        for process in (self._process, *self._process.children(recursive=True)):
            try:
                memory = process.memory_full_info()
                if process.pid not in self._series:
                    name = self._first_name if process.pid == self._process.pid else _module(process)
                    self._series[process.pid] = MemorySeries(name)
            except psutil.Error:
                continue  # It has just ended.
            series = self._series[process.pid]
            series.seconds.append(time.monotonic() - self._began)
            series.rss.append(memory.rss / 2**20)
            series.uss.append(memory.uss / 2**20)

    def lasting(self, since: float) -> list[MemorySeries]:
        """Processes that lived from `since` (in seconds) to the last sample."""
        last = max((series.seconds[-1] for series in self._series.values()), default=0.0)
        return [each for each in self._series.values() if each.seconds[0] <= since and each.seconds[-1] >= last - 1.0]

    @property
    def num_processes(self) -> int:
        """How many processes there have been."""
        return len(self._series)


def _module(process: psutil.Process) -> str:
    """The module that a Python process runs, as far as its command line tells."""
    command = process.cmdline()
    if "-m" not in command[:-1]:
        return process.name()
    module, *following = command[command.index("-m") + 1 :]
    # Children of a server have what they run as an argument.
    return following[0] if module == child.__name__ and following else module


def slope(seconds: np.ndarray, values: np.ndarray, seed: int = 0) -> Slope:
    """The slope per hour of `values` [n] at `seconds` [n], ascending, by least squares.

    Its error is from a bootstrap of the residuals in blocks of `BLOCK_SECONDS` (moving blocks; Künsch, 1989), as memory
    that is taken once stays: samples near each other are alike, and an interval that took them for independent would be
    far too narrow. As there are few blocks, the interval is Student's. Raises `ValueError` for less than four blocks.
    """
    hours = (seconds - seconds.mean()) / 3600
    size = max(1, int(np.searchsorted(seconds, seconds[0] + BLOCK_SECONDS)))
    count = -(-len(values) // size)
    if len(seconds) < 3 * size + 1:
        raise ValueError(f"{len(seconds)} samples: more than three times {BLOCK_SECONDS:g} seconds are needed")
    leverage = hours / np.square(hours).sum()
    value = float(leverage @ values)
    residuals = values - values.mean() - value * hours
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, len(values) - size + 1, (RESAMPLES, count))
    drawn = residuals[starts[:, :, None] + np.arange(size)].reshape(RESAMPLES, -1)[:, : len(values)]
    # Two numbers, the height and the slope, are taken from the data.
    error = float(np.std(drawn @ leverage)) * float(np.sqrt(count / (count - 2)))
    width = float(stats.t.ppf(0.975, count - 2)) * error
    return Slope(value, value - width, value + width)
