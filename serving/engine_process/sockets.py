"""The engine's end of the sockets between it and its client."""

import zmq

import jaxllm
from jaxllm.serving.engine_process.messages import Configure, Hello, ToEngine
from jaxllm.serving.engine_process.wire import Decoder, Encoder


class Sockets:
    """The two connections to the client: DEALER for its messages, PUSH for the engine's."""

    def __init__(self, folder: str) -> None:
        self._context = zmq.Context()
        self.input = self._context.socket(zmq.DEALER)
        self.input.connect(f"ipc://{folder}/input")
        self.output = self._context.socket(zmq.PUSH)
        # With few messages under way, outputs wait in the outbox, where they merge.
        self.output.set_hwm(4)
        self.output.connect(f"ipc://{folder}/output")
        self.decoder: Decoder[ToEngine] = Decoder(ToEngine)

    def greet(self) -> Configure:
        """Say hello, and wait for what to do."""
        self.input.send_multipart(Encoder().encode(Hello(jaxllm.__version__)))
        answer = self.receive()
        assert isinstance(answer, Configure)
        return answer

    def receive(self) -> ToEngine:
        """Wait for the next message."""
        frames = [frame.buffer for frame in self.input.recv_multipart(copy=False)]
        return self.decoder.decode(frames)
