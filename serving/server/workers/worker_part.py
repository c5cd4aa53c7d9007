"""An API server process's part when the number of engines changes, which the supervisor leads."""

import asyncio
import threading
from collections.abc import Callable

from jaxllm.errors import ScalingBusyError
from jaxllm.serving.llm.async_llm import AsyncLLM
from jaxllm.serving.server.workers.messages import FromWorker, Resize, Resized, Scale, Scaled, ScalingTo

Message = Resize | Scaled | ScalingTo


class WorkerPart:
    """Asks for a change, and takes part in those of others. `take` may be called in any thread."""

    def __init__(self, send: Callable[[FromWorker], None]) -> None:
        """`send` tells the supervisor."""
        self._send = send
        self._lock = threading.Lock()
        self._early: list[Message] = []
        self._llm: AsyncLLM | None = None
        self._loop: asyncio.AbstractEventLoop
        self._asked: asyncio.Future[Scaled] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def follow(self, llm: AsyncLLM) -> None:
        """From now on this client uses the engines that there are; what was said before comes first."""
        with self._lock:
            self._loop, self._llm = asyncio.get_running_loop(), llm
            for message in self._early:
                self._loop.call_soon(self._take, llm, message)
            self._early.clear()

    async def scale(self, size: int, drain_timeout: float) -> None:
        """Have the supervisor change the number of engines. Raises what `Scaling.scale` raises."""
        if self._asked is not None:
            raise ScalingBusyError("scaling is in progress: try again later")
        self._asked = asyncio.get_running_loop().create_future()
        try:
            self._send(Scale(size, drain_timeout))
            (await self._asked).check()
        finally:
            self._asked = None

    def take(self, message: Message) -> None:
        """A message of the supervisor."""
        with self._lock:
            if self._llm is None:
                self._early.append(message)
            elif not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._take, self._llm, message)

    def _take(self, llm: AsyncLLM, message: Message) -> None:
        match message:
            case Scaled():
                if self._asked is not None:
                    self._asked.set_result(message)
            case ScalingTo(size):
                llm.engines.scaling.target = size
            case Resize():
                task = asyncio.create_task(self._resize(llm, message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _resize(self, llm: AsyncLLM, message: Resize) -> None:
        members = llm.engines.members
        answer = Resized()
        try:
            match message.step:
                case "grow":
                    await members.grow(message.size)
                case "drain":
                    await members.drain(message.size, message.seconds)
                case "remove":
                    # One that was started meanwhile has drained nothing yet.
                    await members.drain(message.size, message.seconds)
                    await members.remove_drained()
        except Exception as error:  # noqa: BLE001  (whatever it is, the supervisor is told)
            answer = Resized(type(error).__name__, str(error))
        self._send(answer)
