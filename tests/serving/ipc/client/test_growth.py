"""Nothing of an engine, or of a request, is left in the process that answers once another engine has its place."""

import asyncio
import gc
import itertools
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq

import jaxllm.models
from jaxllm import EngineConfig, SamplingParams
from jaxllm.engine.stats import StepStats
from jaxllm.requests.outputs import EngineOutput
from jaxllm.serving.ipc.client import asynchronous, supervisor
from jaxllm.serving.ipc.engine_process.clients import Sockets
from jaxllm.serving.ipc.messages import Add, Credit, Outputs, Ready, ToEngine
from jaxllm.serving.llm.async_llm import AsyncLLM
from tests.serving.conftest import engine_info

DEMO = str(Path(jaxllm.models.__path__[0]) / "demo")
ENDS = 3
"""Of engines, in the life of a request."""
WIDTH = 6
SECONDS = 60.0


class ThreadEngine:
    """In place of an engine process: gives one token to each request that it is sent.

    A request that has had one of so many engines before is at its end.
    """

    pid, is_stopped = 0, False

    def __init__(self, folder: str, on_exit: Callable[[str], None]) -> None:
        self._on_exit = on_exit
        self._over = threading.Lock()
        self._sockets = Sockets(folder)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        sockets = self._sockets
        with suppress(zmq.ContextTerminated):
            sockets.greet()
            sockets.send(Ready(engine_info(model_folder=DEMO, vocab_size=1536, max_model_len=512)), 0)
            for taken in itertools.count(1):
                self._answer(sockets.receive(), taken)
        sockets.close_input()
        sockets.close_output()

    def _answer(self, message: ToEngine, taken: int) -> None:
        outputs = []
        for each in message.sequences if isinstance(message, Add) else ():
            ends = len(each.output_token_ids) == ENDS
            outputs.append(EngineOutput(each.request_id, [50], finish_reason="length" if ends else None))
        self._sockets.send(Outputs(outputs, StepStats()) if outputs else Credit(), taken)

    def end(self, *, at_once: bool = False) -> None:
        """As if it were killed."""
        del at_once
        if self._over.acquire(blocking=False):
            self._sockets.end()
            self._on_exit("killed")

    def kill(self, reason: str) -> None:
        raise AssertionError(reason)

    def reach(self, folder: str) -> str:
        return folder


def census() -> Counter[str]:
    """How many objects there are of our own classes, and how many of all, threads and descriptors."""
    gc.collect()
    objects = gc.get_objects()
    found = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in objects)
    own = Counter({name: count for name, count in found.items() if name.startswith("jaxllm.")})
    return own | Counter(threads=threading.active_count(), descriptors=psutil.Process().num_fds())


async def test_requests_and_restarts_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest would keep the records, and with them the reasons.
    monkeypatch.setattr(supervisor.logger, "disabled", True)
    monkeypatch.setattr(supervisor, "_FIRST_DELAY", 0.0)
    # So long the reason of a restart is kept.
    monkeypatch.setattr(asynchronous, "RESTART_WAIT_SECONDS", 1.0)
    config = EngineConfig.from_options({"model": DEMO})
    engines: list[ThreadEngine] = []

    def launch(folder: str, on_exit: Callable[[str], None]) -> Any:
        engines[:] = [ThreadEngine(folder, on_exit)]
        return engines[0]

    llm = await AsyncLLM.start(config, launch=launch, max_restarts=None, log_level="critical")
    counts = [0] * WIDTH

    async def read(number: int) -> None:
        params = SamplingParams(max_tokens=100, ignore_eos=True, seed=number, temperature=1.0)
        async for output in llm.generate(f"Once upon {number} times", params):
            counts[number] = len(output.outputs[0].token_ids)

    async def rounds(count: int) -> Counter[str]:
        for _ in range(count):
            counts[:] = [0] * WIDTH
            reading = asyncio.gather(*map(read, range(WIDTH)))
            for number in range(1, ENDS + 1):
                async with asyncio.timeout(SECONDS):
                    while counts != [number] * WIDTH:  # noqa: ASYNC110
                        await asyncio.sleep(0.005)
                await asyncio.to_thread(engines[0].end)
            await asyncio.wait_for(reading, SECONDS)
            assert counts == [ENDS + 1] * WIDTH
        await asyncio.sleep(1.5)
        return census()

    try:
        before = await rounds(2)
        after = await rounds(8)
    finally:
        await llm.shutdown()
    assert dict(after - before) == {}
