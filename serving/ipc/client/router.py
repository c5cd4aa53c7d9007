"""Which of several engines a request goes to."""

from collections.abc import Sequence
from typing import Any, Literal

from jaxllm.engine.stats import StepStats
from jaxllm.serving.affinity.prefixes import KnownPrefixes, Prompt

Routing = Literal["load", "prefix"]
"""`load`: to the engine with the least to do; `prefix`: to the one that has computed the beginning of the prompt."""

_WAITS = 4
"""A request that waits counts as much as so many that run, as in vLLM."""


def prompt_of(request: Any) -> Prompt:
    """What a `Request`, or a `PoolingRequest`, shares with others."""
    adapter = getattr(request, "lora_request", None)
    name = None if adapter is None else adapter.lora_name
    return Prompt(token_ids=request.prompt_token_ids, salt=getattr(request, "prefix_salt", None), adapter=name)


class EngineLoad:
    """An engine's load, as it reported last, and the requests sent to it since."""

    __slots__ = ("_running", "_sent", "_waiting")

    def __init__(self) -> None:
        self._running = self._waiting = self._sent = 0

    def observe(self, stats: StepStats) -> None:
        """The state after a step."""
        self._running, self._waiting, self._sent = stats.num_running, stats.num_waiting, 0

    def send(self, sequences: int) -> None:
        """So many more were sent; the engine has said nothing of them yet."""
        self._sent += sequences

    @property
    def waiting(self) -> int:
        """Sequences that wait, or may."""
        return self._waiting + self._sent

    @property
    def running(self) -> int:
        """Sequences that run."""
        return self._running

    @property
    def score(self) -> int:
        """How much there is to do."""
        return _WAITS * self.waiting + self._running


class Router:
    """Chooses engines by what they have to do, and by what they have computed already. Belongs to one thread.

    Requests that do not share a prefix go to the engine with the lowest score, 4 for each sequence that waits and 1 for
    each that runs; of equals, round robin. With `prefix` routing, a prompt goes to the engine that has most of it,
    as long as it need not wait there while another engine is free, and that engine does not run half as many again.
    """

    def __init__(self, routing: Routing) -> None:
        self._loads: dict[int, EngineLoad] = {}
        self.prefixes = KnownPrefixes() if routing == "prefix" else None
        """What the engines have cached, where it counts."""
        self.compares_prompts = routing == "prefix"
        """Whether `choose` looks at prompts, and at what requests share them with."""
        self._next = 0

    def _load(self, engine: int) -> EngineLoad:
        return self._loads.setdefault(engine, EngineLoad())

    def observe(self, engine: int, stats: StepStats) -> None:
        """An engine's state after a step."""
        self._load(engine).observe(stats)

    def forget(self, engine: int) -> None:
        """This engine has nothing to do and nothing in its cache: it is a new one, or gone."""
        self._loads.pop(engine, None)
        self.forget_prefixes(engine)

    def forget_from(self, size: int) -> None:
        """There are no engines from this number on any more."""
        for engine in [number for number in self._loads if number >= size]:
            self.forget(engine)

    def forget_prefixes(self, engine: int) -> None:
        """This engine's cache is empty."""
        if self.prefixes is not None:
            self.prefixes.forget(engine)

    def choose(self, engines: Sequence[int], prompt: Prompt, *, sequences: int = 1) -> int:
        """The engine, of those that may be chosen, for a prompt and so many sequences after it."""
        if len(engines) == 1 and self.prefixes is None:
            return self._sent(engines[0], sequences)
        free = min(engines, key=lambda engine: (self._load(engine).score, (engine - self._next) % (1 + max(engines))))
        if self.prefixes is None:
            return self._sent(free, sequences)
        shared = self.prefixes.shared(prompt, engines)
        near = max(shared, key=lambda engine: (shared[engine], -self._load(engine).score), default=free)
        chosen = near if self._may_wait(near, free) else free
        self.prefixes.add(prompt, chosen)
        return self._sent(chosen, sequences)

    def _may_wait(self, near: int, free: int) -> bool:
        """Whether what is saved by a prefix is worth the load of that engine, alongside the freest one."""
        here, there = self._load(near), self._load(free)
        return here.waiting <= there.waiting and here.running <= max(4, there.running + there.running // 2)

    def _sent(self, engine: int, sequences: int) -> int:
        self._load(engine).send(sequences)
        self._next = engine + 1
        return engine
