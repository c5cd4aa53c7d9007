"""The client's end of an engine process: its sockets, and the thread that listens."""

import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from typing import Protocol

import zmq

import jaxllm
from jaxllm.config import EngineConfig
from jaxllm.errors import CapacityError, ConfigError, EngineError
from jaxllm.info import EngineInfo
from jaxllm.progress import Progress, silent
from jaxllm.serving.clients.process import EngineProcess
from jaxllm.serving.engine_process.messages import (
    Configure,
    Failed,
    FromEngine,
    Hello,
    Loading,
    Ready,
    Release,
    ToEngine,
)
from jaxllm.serving.engine_process.wire import Decoder, Encoder, Frame

Listener = Callable[[FromEngine], None]


class EngineHandle(Protocol):
    """What runs the engine; see `EngineProcess`."""

    @property
    def pid(self) -> int:
        """Process id."""

    def end(self, *, at_once: bool = False) -> None:
        """End it, and wait for that."""

    def kill(self) -> None:
        """End it at once."""


Launch = Callable[[str, Callable[[str], None]], EngineHandle]
"""Starts an engine for the sockets in a folder; the function is called when it has ended, with what can be said."""


class EngineConnection:
    """Starts an engine process and talks to it.

    After `start`, every message is given to `on_message` and the end of the process, once, to `on_end`; both are called
    in the listening thread. `send` may be called from any thread.
    """

    def __init__(
        self, on_message: Listener, on_end: Callable[[EngineError], None], launch: Launch = EngineProcess
    ) -> None:
        """`launch` starts the process."""
        self.info: EngineInfo
        self._on_message, self._on_end, self._launch = on_message, on_end, launch
        self._encoder = Encoder(share=True)
        self._decoder: Decoder[FromEngine] = Decoder(FromEngine)
        self._sending = threading.Lock()
        self._closing = False
        self._exit = ""
        self._listener: threading.Thread | None = None
        self._process: EngineHandle | None = None
        # A byte in this pair says that the process has ended.
        self._woken, self._wake = socket.socketpair()

    def start(
        self, config: EngineConfig, *, progress: Progress = silent, log_level: str = "info", json_logs: bool = False
    ) -> EngineInfo:
        """Start the process, and wait until its engine is ready.

        Raises `ConfigError` and `CapacityError` as the engine does, and `EngineError` when the process ends.
        """
        # Only this user may enter the folder, so nobody else reaches the sockets.
        self._folder = tempfile.mkdtemp(prefix="jaxllm-")
        self._context = zmq.Context()
        self._input = self._context.socket(zmq.ROUTER)
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
            self._identity = self._greet()
            self.send(Configure(config, log_level, json_logs))
            self.info = self._load(progress)
        except BaseException:
            self.close()
            self._dispose()
            raise
        self._listener = threading.Thread(target=self._listen, name="engine-listener", daemon=True)
        self._listener.start()
        return self.info

    @property
    def pid(self) -> int:
        """Process id of the engine."""
        assert self._process is not None
        return self._process.pid

    @property
    def exit_reason(self) -> str:
        """What can be said of the end of the process; empty while it runs."""
        return self._exit

    def send(self, message: ToEngine) -> None:
        """Send a message. It is lost if the process has ended, which `on_end` says or has said."""
        with self._sending:
            if not self._closing:
                frames: list[Frame] = [self._identity, *self._encoder.encode(message)]
                self._input.send_multipart(frames, copy=False)

    def close(self) -> None:
        """End the process and forget about it. May be called again, and from any thread, also while it starts."""
        with self._sending:
            if self._closing:
                return
            self._closing = True
            process = self._process
        if process is not None:
            # One that is still loading has nothing to lose, and may be deep in a compilation.
            process.end(at_once=self._listener is None)

    def kill(self) -> None:
        """Kill the process at once; `on_end` will say so."""
        assert self._process is not None
        self._process.kill()

    def _run_process(self) -> None:
        with self._sending:
            if self._closing:
                raise EngineError("the engine was closed while it started")
            self._process = self._launch(self._folder, self._exited)

    def _greet(self) -> bytes:
        """Wait for the process to say hello; returns its address."""
        poller = zmq.Poller()
        poller.register(self._input, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        if self._input not in dict(poller.poll()):
            raise EngineError(f"the engine process ended while it started ({self._exit})")
        identity, *frames = self._input.recv_multipart()
        hello = self._decoder.decode(frames)
        assert isinstance(hello, Hello)
        if hello.version != jaxllm.__version__:
            raise EngineError(f"the engine process is version {hello.version}, and this is {jaxllm.__version__}")
        return identity

    def _load(self, progress: Progress) -> EngineInfo:
        while True:
            match self._receive():
                case None:
                    raise EngineError(f"the engine process ended while it loaded the model ({self._exit})")
                case Loading(stage, done, total):
                    progress(stage, done, total)
                case Failed(kind, message):
                    raise {"ConfigError": ConfigError, "CapacityError": CapacityError}.get(kind, EngineError)(message)
                case Ready(info):
                    # Both sides are connected: the sockets' names are needed no more, and cannot be left behind.
                    shutil.rmtree(self._folder, ignore_errors=True)
                    return info

    def _receive(self) -> FromEngine | None:
        """Wait for the next message; None when the process has ended and everything it said is read."""
        self._poller.poll()
        try:
            frames = self._output.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        return self._decoder.decode([frame.buffer for frame in frames])

    def _listen(self) -> None:
        reason = ""
        while (message := self._receive()) is not None:
            if isinstance(message, Failed):
                reason = message.message
                break
            if isinstance(message, Release):
                with self._sending:
                    self._encoder.release(message.handles)
            else:
                self._on_message(message)
        if not self._closing:
            error = EngineError(f"the engine failed: {reason}" if reason else f"the engine process died: {self._exit}")
            self._on_end(error)
        self.close()
        self._dispose()

    def _dispose(self) -> None:
        """Give back what the system lent. For the thread that starts or listens, and uses the sockets last."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with self._sending:
            self._encoder.close()
            self._context.destroy(linger=0)
            self._woken.close()
            self._wake.close()

    def _exited(self, reason: str) -> None:
        self._exit = reason
        self._wake.send(b"x")
