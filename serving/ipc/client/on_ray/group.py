"""The processes of one engine that Ray places: which of them is the first, what each is told, and how all end."""

import math
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from jaxllm.config import EngineConfig
from jaxllm.hosts.placement import Placement
from jaxllm.serving.ipc.client.on_ray.actor import EngineActor
from jaxllm.serving.ipc.client.on_ray.cluster import actor_options, copied_variables

TICK = 0.2
"""How often somebody who waits for something else than Ray as well looks."""
_TOGETHER = 4.0
"""Within so many seconds the processes of an engine end by themselves when one of them has."""
_END = 2.0
_SECRET = "JAXLLM_DISTRIBUTED_SECRET"
_WORKER = "ray.io/tpu-worker-id"
"""Ray's label of a machine of a TPU slice, which libtpu numbers so."""


class ActorGroup:
    """An actor in each bundle of a placement group. The first of them is that of the engine's first process."""

    def __init__(self, ray: Any, config: EngineConfig, bundles: Sequence[Mapping[str, float]], group: Any) -> None:
        """Makes the actors, and waits until they run."""
        self._ray, self._config = ray, config
        actors = [self._make_actor(group, number, bundle) for number, bundle in enumerate(bundles)]
        try:
            self._nodes: list[str] = ray.get([actor.node.remote() for actor in actors])
        except BaseException:
            for actor in actors:
                ray.kill(actor)
            raise
        # Who asks for the first host of a slice has it in the first bundle.
        has_head = any(name.endswith("-head") for name in bundles[0])
        order = rank_order(self._nodes, ray.nodes(), "" if has_head else ray.get_runtime_context().get_node_id())
        self.actors = [actors[number] for number in order]
        self._nodes = [self._nodes[number] for number in order]

    @property
    def first(self) -> Any:
        """The actor of the first process, which is the engine's."""
        return self.actors[0]

    @property
    def is_here(self) -> bool:
        """Whether that one is on this machine."""
        return bool(self._nodes[0] == self._ray.get_runtime_context().get_node_id())

    def start_followers(self) -> dict[str, str]:
        """Start the processes that follow the first one, which is not there yet; the variables for that one."""
        variables = copied_variables(os.environ)
        size, options = len(self.actors), self._config.distributed
        if size == 1:
            return variables
        variables[_SECRET] = secrets.token_hex(32)
        address, port = self._ray.get(self.first.address.remote())
        address, port = options.master_addr or address, options.master_port or port
        places = [Placement(size, rank, address, port, "Ray") for rank in range(size)]
        config = msgspec.msgpack.encode(self._config)
        followers = zip(self.actors[1:], places[1:], strict=True)
        self._ray.get([actor.follow.remote(config, variables | place.variables) for actor, place in followers])
        return variables | places[0].variables

    def wait(self, ended_elsewhere: Callable[[], str] | None = None) -> str:
        """Wait until a process has ended, and the others with it; what can be said of that.

        `ended_elsewhere` says what else is known of the end of the first one, and nothing while it runs.
        """
        pending = {actor.wait.remote(): rank for rank, actor in enumerate(self.actors)}
        said: dict[int, str] = {}
        until = math.inf
        while pending and time.monotonic() < until:
            over, _ = self._ray.wait(list(pending), timeout=TICK if said or ended_elsewhere else None)
            for each in over:
                said[pending.pop(each)] = self._reason(each)
            if ended_elsewhere is not None and (reason := ended_elsewhere()):
                said.setdefault(0, reason)
                pending = {each: rank for each, rank in pending.items() if rank}
            if said and until == math.inf:
                until = time.monotonic() + _TOGETHER
        return self._cause(said)

    def _cause(self, said: Mapping[int, str]) -> str:
        """What is said of the process that has ended first, or rather of the one that had the others end."""
        size = len(self.actors)
        if size == 1:
            return said[0]
        # Those that end because another one is gone have an exit code.
        rank = next((rank for rank, reason in said.items() if not reason.startswith("exit code")), next(iter(said)))
        return f"process {rank} of {size}: {said[rank]}"

    def _reason(self, over: Any) -> str:
        try:
            return str(self._ray.get(over))
        except self._ray.exceptions.RayActorError as error:
            return f"its actor died: {first_line(error)}"

    def end(self) -> None:
        """End what is left: processes first, because an actor that Ray kills does not wait for its own."""
        if len(self.actors) > 1:
            ends = [actor.end.remote(at_once=True) for actor in self.actors]
            self._ray.wait(ends, num_returns=len(ends), timeout=_END)
        for actor in self.actors:
            self._ray.kill(actor)

    def _make_actor(self, group: Any, number: int, bundle: Mapping[str, float]) -> Any:
        strategies = self._ray.util.scheduling_strategies
        make_actor = self._ray.remote(EngineActor).options(
            **actor_options(bundle),
            scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
            runtime_env=dict(self._config.ray.ray_runtime_env or {}),
            # One thread waits for the end, while another is told to bring it about.
            max_concurrency=2,
            max_restarts=0,
        )
        return make_actor.remote(group.bundle_count)


def rank_order(placed: Sequence[str], nodes: Sequence[Mapping[str, Any]], here: str) -> list[int]:
    """Which of the machines on which actors are is that of process 0, 1, ...: indices into `placed`.

    Hosts of a TPU slice have the order in which libtpu knows them. Otherwise the one called `here` comes first.
    """
    workers = {node["NodeID"]: node.get("Labels", {}).get(_WORKER, "") for node in nodes}

    def key(number: int) -> tuple[int, bool]:
        worker = workers.get(placed[number], "")
        return int(worker) if worker.isdecimal() else 0, placed[number] != here

    return sorted(range(len(placed)), key=key)


def first_line(error: Exception) -> str:
    """The first line of what an error says, which for Ray's may be a page."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
