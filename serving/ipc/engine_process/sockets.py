"""The engine's end of the sockets between it and one client."""

import zmq

from jaxllm.serving.ipc.messages import Configure, FromEngine, Hello, ToEngine
from jaxllm.serving.ipc.wire import FrameDecoder, FrameEncoder, NumberedDecoder, NumberedEncoder
from jaxllm.version import __version__


class Sockets:
    """A connection for each direction, PULL and PUSH: neither ever drops a message.

    One thread receives and one sends. When both have closed their end, `Sockets.end` returns.
    """

    def __init__(self, folder: str) -> None:
        self._context = zmq.Context()
        self._input = self._context.socket(zmq.PULL)
        self._input.connect(f"ipc://{folder}/input")
        self._output = self._context.socket(zmq.PUSH)
        # With few messages under way, outputs wait in the queue, where they merge.
        self._output.set_hwm(4)
        self._output.connect(f"ipc://{folder}/output")
        self.decoder: FrameDecoder[ToEngine] = FrameDecoder(ToEngine)
        self._numbered = NumberedDecoder(self.decoder)
        self._encoder = NumberedEncoder(FrameEncoder())

    def greet(self) -> Configure:
        """Say hello, and wait for what to do. Before any other thread sends."""
        self.send(Hello(__version__), 0)
        answer = self.receive()
        assert isinstance(answer, Configure)
        return answer

    def receive(self) -> ToEngine:
        """Wait for the next message. Raises `LostMessageError`, and `zmq.ContextTerminated` after `end`."""
        frames = [frame.buffer for frame in self._input.recv_multipart(copy=False)]
        return self._numbered.decode(frames)

    def send(self, message: FromEngine, taken: int) -> None:
        """Send a message, and how many of the client's were taken. Raises `zmq.ContextTerminated` after `end`."""
        self._output.send_multipart(self._encoder.encode(message, taken), copy=False)

    def close_input(self) -> None:
        """By the thread that receives."""
        self._input.close(linger=0)

    def close_output(self) -> None:
        """By the thread that sends."""
        self._output.close(linger=0)

    def end(self) -> None:
        """By any thread: interrupt both, and wait until they have closed their ends."""
        self._context.term()
