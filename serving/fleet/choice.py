"""Which server gets a request."""

from collections.abc import Sequence

from jaxllm.serving.affinity.prefixes import KnownPrefixes, Prompt
from jaxllm.serving.fleet.servers import FleetServer

_FEW = 4
"""So many requests run beside each other without much loss, wherever others are."""


class Choice:
    """Chooses servers by what they have cached, as far as that is known, and by what they have to do."""

    def __init__(self, prefixes: KnownPrefixes) -> None:
        self._prefixes = prefixes
        self._turn = 0

    def cached(self, servers: Sequence[FleetServer], prompt: Prompt) -> dict[int, int]:
        """Tokens of the prompt that each server has, by its number; of several engines, the one that has most."""
        found = self._prefixes.shared(prompt, [engine for server in servers for engine in server.engines])
        return {server.number: max(found.get(engine, 0) for engine in server.engines) for server in servers}

    def decode(self, servers: Sequence[FleetServer], prompt: Prompt | None) -> tuple[FleetServer, int]:
        """The server that answers, and the tokens of the prompt that it has cached.

        That which has most of the prompt, unless it has half as many requests again as the one with the fewest.
        """
        free = min(servers, key=lambda each: (each.in_flight, self._distance(each)))
        cached = {} if prompt is None else self.cached(servers, prompt)
        near = max(servers, key=lambda each: (cached.get(each.number, 0), -each.in_flight), default=free)
        is_near = cached.get(near.number, 0) > 0
        chosen = near if is_near and near.in_flight <= max(_FEW, free.in_flight + free.in_flight // 2) else free
        self._turn = chosen.number + 1
        return chosen, cached.get(chosen.number, 0)

    def prefill(self, servers: Sequence[FleetServer], prompt: Prompt) -> tuple[FleetServer, int]:
        """The server that will have computed the prompt first, and the tokens that it has to compute for it."""
        cached = self.cached(servers, prompt)
        length = len(prompt.token_ids)

        def work(server: FleetServer) -> int:
            return length - cached[server.number]

        chosen = min(servers, key=lambda each: (each.queued_tokens + work(each), self._distance(each)))
        self._turn = chosen.number + 1
        return chosen, work(chosen)

    def sent(self, server: FleetServer, prompt: Prompt) -> None:
        """The server was sent the prompt."""
        # Which of its engines gets it is the server's choice.
        for engine in server.engines:
            self._prefixes.add(prompt, engine)

    def _distance(self, server: FleetServer) -> int:
        """Of equals, they take turns."""
        return (server.number - self._turn) % 1024
