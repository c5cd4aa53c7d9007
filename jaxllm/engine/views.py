"""What an engine shows to people who watch it: now, and of its model as a whole. Without JAX: servers read it too."""

import msgspec

from jaxllm.engine.page_map import PageMap
from jaxllm.engine.step_log import StepRecord


class LiveView(msgspec.Struct, kw_only=True):
    """An engine between two steps."""

    now: float = 0.0
    """Seconds, by the clock of the steps."""
    maps: list[PageMap] = []
    """The pages of each data shard."""
    steps: list[StepRecord] = []
    """The last ones, if somebody has asked for them a moment ago."""


class MemoryPart(msgspec.Struct):
    """Memory of each device that is for one thing; of several stages, of the one where it is most."""

    name: str
    bytes: int


class MadeProgram(msgspec.Struct):
    """A program of the engine, ready to run."""

    name: str
    seconds: float
    """How long it took to compile, or to read."""
    is_compiled: bool
    """False: it was read from a cache or a bundle."""
    tokens: int | None = None
    """Of a step: the tokens that it has room for."""


class ModelView(msgspec.Struct, kw_only=True):
    """What the model takes of the devices, and what was made of it."""

    memory: list[MemoryPart] = []
    memory_limit: int | None = None
    """Bytes of memory of a device, where it says so."""
    programs: list[MadeProgram] = []
    peak_flops: float | None = None
    """Operations a second of a device at most; null where the chip's figures are not known."""
    peak_bandwidth: float | None = None
    """Bytes a second of its memory at most; null likewise."""
