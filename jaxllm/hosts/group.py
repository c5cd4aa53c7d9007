"""Shared by both sides of a group of processes: how they agree, and how they end."""

import logging
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from jaxllm.errors import ConfigError
from jaxllm.hosts.placement import Placement

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Timing:
    """Seconds between signs of life, and of silence after which a process counts as gone."""

    beat: float = 0.5
    silence: float = 15.0


class Group(ABC):
    """The processes of one engine, as one of them sees it. One thread uses it, alongside its own."""

    def __init__(self, place: Placement) -> None:
        self.place = place

    @property
    def is_leader(self) -> bool:
        """Whether this process schedules and serves."""
        return self.place.is_leader

    @abstractmethod
    def gather(self, stage: str, value: Any) -> list[Any]:
        """The facts of all processes at a stage, by rank. Each calls it for the same stages in the same order.

        Values are what msgpack has. Raises `EngineError` when one of them has ended.
        """

    @abstractmethod
    def close(self, reason: str | None = None) -> None:
        """Leave the group, which ends with it. With a reason, something has failed, and the others say so."""

    def smallest(self, stage: str, value: int) -> int:
        """The smallest value of all processes."""
        return int(min(self.gather(stage, value)))

    def check_same(self, stage: str, values: Mapping[str, Any]) -> None:
        """Raise `ConfigError`, on all processes, unless all have the same values; it names the first that differ."""
        every = self.gather(stage, dict(values))
        for rank, other in enumerate(every):
            names = [name for name in {**every[0], **other} if every[0].get(name) != other.get(name)]
            if names:
                shown = ", ".join(f"{name} is {every[0].get(name)} and {other.get(name)}" for name in names[:3])
                raise ConfigError(
                    f"process 0 and process {rank} of this engine differ: {shown}; start all processes with the same "
                    "options, model and versions"
                )


def end_process(line: str, code: int = 1) -> NoReturn:
    """End this process at once, with one line that says why.

    Its other threads may wait for a collective that never ends, which nothing interrupts.
    """
    logger.critical("%s", line)
    for handler in logging.getLogger().handlers:
        handler.flush()
    sys.stderr.flush()
    os._exit(code)
