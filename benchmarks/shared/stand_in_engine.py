"""An engine process that computes nothing, and gives every request one token per step: what is measured is the server.

`python -m benchmarks.shared.stand_in_engine FOLDER` speaks the engine's own protocol over its own sockets. The tokens
are those of a text, over and over. How long a step takes is in the environment; a step that comes late is not made up
for, as with a real engine.
"""

import os
import sys
import time
from pathlib import Path
from queue import Empty
from typing import Any

import jaxllm.models
from benchmarks.shared.stand_in_server import STEP_MS
from jaxllm.config import EngineConfig
from jaxllm.config.engine_info import EngineInfo
from jaxllm.config.progress import Progress
from jaxllm.engine.stats import StepStats
from jaxllm.requests.outputs import EngineOutput
from jaxllm.serving.ipc.engine_process.__main__ import main
from jaxllm.serving.ipc.engine_process.clients import Client, Clients, InputQueue
from jaxllm.serving.ipc.messages import (
    Abort,
    Add,
    Call,
    Called,
    Finish,
    Reconcile,
    Reconciled,
    ToEngine,
)

MAX_MODEL_LEN = 10_000_000
_TEXT = (
    "Once upon a time there was a little girl named Mira. She had a red ball, and every day she went to the park with "
    'her dog. "Look," said Mira, "the ball is in the tree!" They were very happy, and went home. 17 plus 25 is 42. '
)


class StandIn:
    """The requests in flight: how many tokens each still gets."""

    def __init__(self, config: EngineConfig, report: Progress) -> None:
        del report
        self.info = _info(config)
        self._tokens = _tokens()
        self._left: dict[str, int] = {}
        self._step = 0

    def mark_weights_stale(self, reason: str) -> None:
        """It has none."""

    def close(self) -> None:
        """Nothing to give back."""

    def run(self, input_queue: InputQueue, clients: Clients) -> None:
        """Step at the pace that is asked for, until the client is gone."""
        seconds = float(os.environ.get(STEP_MS, "5")) / 1e3
        due = time.perf_counter()
        while True:
            due = max(due + seconds, time.perf_counter())
            while True:
                try:
                    wait = due - time.perf_counter()
                    arrived = input_queue.get(timeout=wait) if wait > 0 else input_queue.get_nowait()
                except Empty:
                    break
                if arrived is None:
                    return
                self._obey(*arrived, clients)
            if self._left:
                clients.put_outputs(*self._advance(seconds))

    def _obey(self, client: Client, message: ToEngine | Exception, clients: Clients) -> None:
        if client not in clients:
            return
        for name in clients.take(client, message):
            self._left.pop(name, None)
        match message:
            case Add():
                for each in message.sequences:
                    self._left[each.request_id] = each.params.max_tokens or MAX_MODEL_LEN
            case Abort(names):
                for name in names:
                    self._left.pop(name, None)
            case Finish(stopped):
                for name, _ in stopped:
                    self._left.pop(name, None)
            case Reconcile(number, names):
                client.output_queue.put_behind(Reconciled(number, [name for name in names if name not in self._left]))
            case Call(number):
                client.output_queue.put(Called(number, result=True))

    def _advance(self, seconds: float) -> tuple[list[EngineOutput], StepStats]:
        """One token for each request."""
        self._step += 1
        token, left = self._tokens[self._step % len(self._tokens)], self._left
        outputs = []
        ended = []
        for name, count in left.items():
            left[name] = count - 1
            outputs.append(EngineOutput(name, [token]))
            if count == 1:
                outputs[-1].finish_reason = "length"
                ended.append(name)
        for name in ended:
            del left[name]
        rows = len(outputs)
        return outputs, StepStats(len(left), 0, 0.5, rows, rows, rows, seconds, num_steps=1)


def _info(config: EngineConfig) -> EngineInfo:
    return EngineInfo(
        model=config.model.model, model_folder=str(_folder()), vocab_size=1536, eos_token_ids=(0, 2),
        max_model_len=MAX_MODEL_LEN, max_num_seqs=4096, max_num_batched_tokens=4096, max_logprobs=20, num_pages=10_000,
        block_size=16, enable_prefix_caching=False, dtype="float32", device_kind="none", num_devices=1, num_shapes=0,
    )  # fmt: skip


def _folder() -> Path:
    """That of the demo model, whose tokenizer the server uses."""
    return Path(jaxllm.models.__path__[0]) / "demo"


def _tokens() -> list[int]:
    from tokenizers import Tokenizer

    backend: Any = Tokenizer.from_file(str(_folder() / "tokenizer.json"))
    tokens: list[int] = backend.encode(_TEXT, add_special_tokens=False).ids
    return tokens


if __name__ == "__main__":
    code = main(sys.argv[1], StandIn, StandIn.run)
    sys.stderr.flush()
    os._exit(code)
