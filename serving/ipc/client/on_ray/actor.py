"""The actor that Ray runs where it has placed an engine: it starts the engine's process there, and watches it."""

import os
import tempfile
import threading
from collections.abc import Mapping

from jaxllm.serving.ipc.client.on_ray.bridge import free_ports, run_invited
from jaxllm.serving.ipc.client.on_ray.cluster import import_ray
from jaxllm.serving.ipc.client.on_ray.follower import write_config
from jaxllm.serving.ipc.client.placement import tpu_variables
from jaxllm.serving.ipc.client.process import EngineProcess

_FOLLOWER_MODULE = "jaxllm.serving.ipc.client.on_ray.follower"


class EngineActor:
    """One process of an engine. It ends with the actor, whose pipe is its standard input.

    A process of its own, because an engine that hangs in a driver must not keep the actor from answering, and because
    JAX shall find neither Ray's threads nor its libraries.
    """

    def __init__(self, size: int = 1) -> None:
        """Create an actor of an engine with `size` processes."""
        self._size = size
        self._ended = threading.Event()
        self._reason = ""
        self._process: EngineProcess

    def start(self, folder: str, variables: Mapping[str, str]) -> int:
        """Start the process for the sockets in a folder, with these variables; its id on this machine."""
        self._prepare()
        self._process = EngineProcess(folder, self._take_end, variables=variables)
        return self._process.pid

    def node(self) -> str:
        """Ray's name of this machine."""
        name: str = import_ray().get_runtime_context().get_node_id()
        return name

    def address(self) -> tuple[str, int]:
        """Where the others may reach a process on this machine: with the port after it, which is free too."""
        address: str = import_ray().util.get_node_ip_address()
        return address, free_ports(address, 2)

    def follow(self, config: bytes, variables: Mapping[str, str]) -> None:
        """Start a process that follows the first one of its engine; variables say where that is."""
        self._prepare()
        folder = tempfile.mkdtemp(prefix="jaxllm-ray-")
        write_config(folder, config)
        self._process = EngineProcess(folder, self._take_end, _FOLLOWER_MODULE, variables)

    def join(self, invitation: bytes, variables: Mapping[str, str]) -> None:
        """Start the process for a client on another machine, which has sent an invitation; see `Bridge`."""
        self._prepare()
        arguments = (invitation, dict(variables), self._take_end)
        threading.Thread(target=run_invited, args=arguments, name="ray-engine-host", daemon=True).start()

    def wait(self) -> str:
        """Wait until the process has ended; what can be said of that."""
        self._ended.wait()
        return self._reason

    def end(self, *, at_once: bool) -> None:
        """As `EngineProcess.end`."""
        if hasattr(self, "_process"):
            self._process.end(at_once=at_once)

    def _prepare(self) -> None:
        prepare_environment(is_alone=self._size == 1)

    def _take_end(self, reason: str) -> None:
        self._reason = reason
        self._ended.set()


def prepare_environment(*, is_alone: bool = True) -> None:
    """Set this actor's variables so that JAX in its children sees the devices that Ray has given to it.

    An engine that is not alone has all chips of its hosts, and libtpu finds those of the others.
    """
    # Ray says 1 to every process of its own, also where an engine may use all processors.
    os.environ.pop("OMP_NUM_THREADS", None)
    if is_alone:
        os.environ.update(tpu_variables(import_ray().get_runtime_context().get_accelerator_ids().get("TPU", [])))
