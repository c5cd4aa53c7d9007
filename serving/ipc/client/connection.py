"""The client's end of an engine process: its sockets, and the thread that listens."""

import logging
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import zmq

from jaxllm.config import EngineConfig
from jaxllm.config.engine_info import EngineInfo
from jaxllm.config.progress import Progress, silent
from jaxllm.errors import CapacityError, ConfigError, EngineError
from jaxllm.serving.ipc.client.process import EngineProcess
from jaxllm.serving.ipc.client.queues import SendQueue
from jaxllm.serving.ipc.messages import (
    Configure,
    Credit,
    Failed,
    FromEngine,
    Hello,
    Loading,
    Ready,
    Release,
    ToEngine,
)
from jaxllm.serving.ipc.wire import FrameDecoder, FrameEncoder, NumberedDecoder, NumberedEncoder, WireError
from jaxllm.version import __version__

logger = logging.getLogger(__name__)

Listener = Callable[[FromEngine], None]

_LOOK_SECONDS = 1.0
"""How often a process that starts is looked at."""
STOPPED_SECONDS = 10.0
"""For so long it may be stopped. Starts take as long as they take, but one that does nothing never ends."""


class EngineHandle(Protocol):
    """The handle of a running engine; see `EngineProcess`."""

    @property
    def pid(self) -> int:
        """Process id."""

    def end(self, *, at_once: bool = False) -> None:
        """End it, and wait for that."""

    def kill(self, reason: str) -> None:
        """End it at once, because it does not do what it should."""

    def reach(self, folder: str) -> str:
        """The folder, as the engine sees it, of the sockets of one more client."""

    @property
    def is_stopped(self) -> bool:
        """Whether somebody has stopped it (SIGSTOP), so that it does nothing; False where that cannot be seen."""


Launch = Callable[[str, Callable[[str], None]], EngineHandle]
"""Starts an engine for the sockets in a folder; the function is called when it has ended, with what can be said."""


class EngineConnection:
    """Starts one engine process and talks to it, until it ends; another process needs another connection.

    After `start`, every message is given to `on_message` and the end of the process, once, to `on_end`; both are called
    in the listening thread. `send` may be called from any thread, also before `start`: the engine gets it when it is
    ready.
    """

    def __init__(
        self, on_message: Listener, on_end: Callable[[EngineError], None], launch: Launch = EngineProcess
    ) -> None:
        """`launch` starts the process."""
        self.info: EngineInfo
        self._on_message, self._on_end, self._launch = on_message, on_end, launch
        self._encoder = NumberedEncoder(FrameEncoder(share=True))
        self._decoder: NumberedDecoder[FromEngine] = NumberedDecoder(FrameDecoder(FromEngine))
        self._queue = SendQueue(self._transmit)
        self._sending = threading.Lock()
        self._closing = False
        self._disposed = False
        self._exit = ""
        self._listener: threading.Thread | None = None
        self._process: EngineHandle | None = None
        # A byte in this pair says that the process has ended.
        self._woken, self._wake = socket.socketpair()

    def start(
        self,
        config: EngineConfig,
        *,
        progress: Progress = silent,
        log_level: str = "info",
        json_logs: bool = False,
        stale_weights: str | None = None,
    ) -> EngineInfo:
        """Start the process, and wait until its engine is ready. For `stale_weights` see `Configure`.

        Raises `ConfigError` and `CapacityError` as the engine does, and `EngineError` when the process ends.
        """
        # Engines on other hosts see nothing of this one's memory.
        local = config.parallel.data_parallel_size_local is None and not config.is_on_ray
        self._encoder.encoder.share &= local
        # Only this user may enter the folder, so nobody else reaches the sockets.
        self._folder = tempfile.mkdtemp(prefix="jaxllm-")
        self._context = zmq.Context()
        # Neither kind of socket drops messages; how many are under way is the queue's to say.
        self._input = self._context.socket(zmq.PUSH)
        self._input.set_hwm(0)
        self._output = self._context.socket(zmq.PULL)
        # Outputs that are not read wait on the other side, where they merge.
        self._output.set_hwm(4)
        for name, end in (("input", self._input), ("output", self._output)):
            end.bind(f"ipc://{self._folder}/{name}")
        self._poller = zmq.Poller()
        self._poller.register(self._output, zmq.POLLIN)
        self._poller.register(self._woken, zmq.POLLIN)
        try:
            self._run_process()
            self._greet()
            self._transmit(Configure(config, log_level, json_logs, stale_weights))
            self.info = self._load(progress)
        except BaseException:
            self.close()
            self._dispose()
            raise
        self._listener = threading.Thread(target=self._listen, name="engine-listener", daemon=True)
        self._listener.start()
        self._queue.open()
        return self.info

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        assert self._process is not None
        return self._process.pid

    def send(self, message: ToEngine) -> None:
        """Send a message, as soon as the engine takes it. It is lost if the process ends, which `on_end` says."""
        self._queue.put(message)

    def unsent(self) -> list[ToEngine]:
        """Requests that were never sent, for another connection; nothing more can be sent by this one."""
        return self._queue.close()

    def _transmit(self, message: ToEngine) -> None:
        with self._sending:
            if not self._disposed:
                # Without a peer there is nobody left to send to.
                with suppress(zmq.Again):
                    self._input.send_multipart(self._encoder.encode(message), zmq.NOBLOCK, copy=False)

    def close(self) -> None:
        """End the process and forget about it. May be called again, and from any thread, also while it starts."""
        # One that is still loading has nothing to lose, and may be deep in a compilation.
        self._close(at_once=self._listener is None)

    def _close(self, *, at_once: bool) -> None:
        with self._sending:
            if self._closing:
                return
            self._closing = True
            process = self._process
        if process is not None:
            process.end(at_once=at_once)

    def kill(self, reason: str) -> None:
        """Kill the process at once, for a reason; `on_end` will say that it has ended. Only after `start`."""
        assert self._process is not None
        self._process.kill(reason)

    def reach(self, folder: str) -> str:
        """The folder of another client's sockets, as the engine sees it. Only after `start`."""
        assert self._process is not None
        return self._process.reach(folder)

    def join(self, seconds: float) -> bool:
        """Wait until the process has ended and everything of it is given back; whether it has."""
        if self._listener is not None:
            self._listener.join(seconds)
        return self._listener is None or not self._listener.is_alive()

    def _run_process(self) -> None:
        with self._sending:
            if self._closing:
                raise EngineError("the engine was closed during start-up")
            self._process = self._launch(self._folder, self._exited)

    def _greet(self) -> None:
        """Wait for the process to say hello, and until it can be answered."""
        hello = self._receive_from_start()
        if hello is None:
            raise EngineError(f"the engine process ended during start-up ({self._exit})")
        if not isinstance(hello, Hello):
            raise WireError(f"the engine process began with {type(hello).__name__}")
        if hello.version != __version__:
            raise EngineError(f"the engine process has version {hello.version}, but this process has {__version__}")
        poller = zmq.Poller()
        poller.register(self._input, zmq.POLLOUT)
        poller.register(self._woken, zmq.POLLIN)
        poller.poll()

    def _load(self, progress: Progress) -> EngineInfo:
        while True:
            match self._receive_from_start():
                case None:
                    raise EngineError(f"the engine process ended while loading the model ({self._exit})")
                case Loading(stage, done, total):
                    progress(stage, done, total)
                case Failed(kind, message):
                    raise {"ConfigError": ConfigError, "CapacityError": CapacityError}.get(kind, EngineError)(message)
                case Ready(info):
                    # Both sides are connected: the sockets' names are needed no more, and cannot be left behind.
                    shutil.rmtree(self._folder, ignore_errors=True)
                    return info

    def _receive_from_start(self) -> FromEngine | None:
        """As `_receive`, of a process that starts. Raises `EngineError` if it is stopped for long."""
        assert self._process is not None
        stopped = 0.0
        while not self._poller.poll(int(_LOOK_SECONDS * 1000)):
            stopped = stopped + _LOOK_SECONDS if self._process.is_stopped else 0.0
            if stopped >= STOPPED_SECONDS:
                raise EngineError(
                    f"somebody has stopped the engine process (SIGSTOP) {stopped:.0f} s ago as it started"
                )
        return self._receive()

    def _receive(self) -> FromEngine | None:
        """Wait for the next message; None when the process has ended and everything it said is read."""
        self._poller.poll()
        try:
            frames = self._output.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        return self._decoder.decode([frame.buffer for frame in frames])

    def _listen(self) -> None:
        error = self._listen_until_it_ends()
        unasked = not self._closing
        # Gone before anybody hears of it: there may be no room for another alongside it.
        self._close(at_once=True)
        if unasked:
            self._on_end(error)
        self._dispose()

    def _listen_until_it_ends(self) -> EngineError:
        """Hand on all messages; then why there are no more."""
        try:
            while (message := self._receive()) is not None:
                self._queue.grant(self._decoder.taken)
                match message:
                    case Failed():
                        return EngineError(f"the engine failed: {message.message}")
                    case Release(handles):
                        with self._sending:
                            self._encoder.encoder.release(handles)
                    case Credit():
                        pass
                    case _:
                        self._on_message(message)
        except WireError as error:
            return EngineError(f"cannot decode the engine's messages: {error}")
        except Exception as error:
            # Without this thread, nobody would hear that the process ends.
            logger.exception("cannot take a message of the engine")
            return EngineError(f"cannot take the engine's messages: {error}")
        return EngineError(f"the engine process died: {self._exit}")

    def _dispose(self) -> None:
        """Give back what the system lent. For the thread that starts or listens, and uses the sockets last."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with self._sending:
            self._disposed = True
            self._encoder.encoder.close()
            self._context.destroy(linger=0)
            self._woken.close()
            self._wake.close()

    def _exited(self, reason: str) -> None:
        self._exit = reason
        # One that could not be killed may end long after.
        with suppress(OSError):
            self._wake.send(b"x")
