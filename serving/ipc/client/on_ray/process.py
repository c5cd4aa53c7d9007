"""One engine on machines that Ray chooses; see `EngineProcess` for one on this machine."""

import logging
import threading
from collections.abc import Callable
from typing import Any

from jaxllm.config import EngineConfig
from jaxllm.serving.ipc.client.on_ray.bridge import Bridge
from jaxllm.serving.ipc.client.on_ray.cluster import bundles_of, connect
from jaxllm.serving.ipc.client.on_ray.group import TICK, ActorGroup, first_line
from jaxllm.serving.ipc.client.process import END_SECONDS

logger = logging.getLogger(__name__)

_PATIENCE = 5.0
"""After so many seconds without a place the log says what is waited for."""


class RayProcess:
    """A placement group with what the engine needs, and an actor in it that starts the process there.

    On several hosts it is an actor for each process; what is said here of the process is said of the first.

    The process ends when the actor does, and Ray ends the actor when this process is gone.
    """

    def __init__(self, folder: str, on_exit: Callable[[str], None], config: EngineConfig) -> None:
        """`folder` is where the sockets are. `on_exit` is called in a thread, with what can be said of the end.

        Raises `ConfigError` when there is no cluster, or not what is asked of it.
        """
        self._ray, self._config = connect(), config
        self._bundles = bundles_of(config, self._ray)
        self._folder, self._on_exit = folder, on_exit
        self._unwanted = threading.Event()
        self._actors: ActorGroup | None = None
        self._actor: Any = None
        """Actor of the first process, once it has been told to start it."""
        self._bridge: Bridge | None = None
        self.pid = 0
        """Process id on its machine; 0 before it is placed."""
        self._runner = threading.Thread(target=self._run, name="ray-engine", daemon=True)
        self._runner.start()

    def end(self, *, at_once: bool = False) -> None:
        """End the process and wait for it; kill it if it does not go, or `at_once`. May be called again."""
        self._unwanted.set()
        actor = self._actor
        if actor is not None and self._runner.is_alive():
            self._try_to_end(actor, at_once=at_once)
        self._runner.join(END_SECONDS)

    def reach(self, folder: str) -> str:
        """The folder of a client's sockets, as the process sees it."""
        return folder if self._bridge is None else self._bridge.engine.reach(folder)

    @property
    def is_stopped(self) -> bool:
        """Not seen from here."""
        return False

    def kill(self, reason: str) -> None:
        """Kill the process at once."""
        del reason  # Whoever kills it will say so.
        threading.Thread(target=self.end, kwargs={"at_once": True}, name="ray-engine-kill", daemon=True).start()

    def _try_to_end(self, actor: Any, *, at_once: bool) -> None:
        """Have the actor end its process, or end the actor if it does not answer."""
        if self._bridge is not None:
            self._bridge.engine.end(at_once=at_once)
            return
        try:
            self._ray.get(actor.end.remote(at_once=at_once), timeout=2 * END_SECONDS)
        except self._ray.exceptions.RayError as error:
            logger.debug("the actor could not stop its engine: %s", error)
            self._ray.kill(actor)

    def _run(self) -> None:
        """From the place to the end."""
        group = None
        reason = "it was not started"
        try:
            group = self._reserve()
            if not self._unwanted.is_set():
                self._actors = ActorGroup(self._ray, self._config, self._bundles, group)
                reason = self._start_and_wait(self._actors)
        except self._ray.exceptions.RayActorError as error:
            reason = f"its actor died: {first_line(error)}"
        except Exception as error:  # noqa: BLE001  (whatever Ray raises, somebody waits to hear of the end)
            reason = f"Ray: {first_line(error)}"
        finally:
            self._release(group)
            self._on_exit(reason)

    def _reserve(self) -> Any:
        """A placement group, with room unless it is not wanted any more."""
        # A process that shares chips of a machine with another one of its engine does not find them by itself.
        spread = "STRICT_SPREAD" if "TPU" in self._bundles[0] else "SPREAD"
        group = self._ray.util.placement_group(
            self._bundles, strategy=spread if len(self._bundles) > 1 else "STRICT_PACK"
        )
        ready, waited = group.ready(), 0.0
        while not self._unwanted.is_set():
            if self._ray.wait([ready], timeout=TICK)[0]:
                self._ray.get(ready)
                return group
            if waited < _PATIENCE <= waited + TICK:
                logger.info(
                    "an engine is waiting for %s; free resources: %s", self._wanted(), self._ray.available_resources()
                )
            waited += TICK
        return group

    def _wanted(self) -> str:
        count = len(self._bundles)
        return f"{self._bundles[0]}" + (f" and {count - 1} times {self._bundles[1]}" if count > 1 else "")

    def _start_and_wait(self, actors: ActorGroup) -> str:
        variables = actors.start_followers()
        if not actors.is_here:
            return self._wait_elsewhere(actors, variables)
        self.pid = self._ray.get(actors.first.start.remote(self._folder, variables))
        self._actor = actors.first
        if self._unwanted.is_set():
            self._try_to_end(self._actor, at_once=True)
        return actors.wait()

    def _wait_elsewhere(self, actors: ActorGroup, variables: dict[str, str]) -> str:
        """Start the first process on another machine than this, and wait for its end."""
        with Bridge(self._config, self._ray.util.get_node_ip_address(), self._folder) as bridge:
            self._ray.get(actors.first.join.remote(bridge.invitation, variables))
            self._bridge, self._actor = bridge, actors.first
            if self._unwanted.is_set():
                self._try_to_end(self._actor, at_once=True)
            return actors.wait(lambda: bridge.reason)

    def _release(self, group: Any) -> None:
        """Give the place back, for another."""
        try:
            if self._actors is not None:
                self._actors.end()
            if group is not None:
                self._ray.util.remove_placement_group(group)
        except Exception as error:  # noqa: BLE001  (there may be no cluster any more)
            logger.debug("a placement group could not be removed: %s", error)
