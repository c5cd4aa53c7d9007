"""What the page must know of the model and the server: what to offer, and what the view of the model shows."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.engine.views import ModelView
from jaxllm.errors import EngineError
from jaxllm.serving.http.body.base import Answer
from jaxllm.serving.http.responses import json_response
from jaxllm.serving.http.state import ServerState, server_of
from jaxllm.serving.ipc.client.control import called
from jaxllm.serving.telemetry.engine_metrics import EngineMetrics
from jaxllm.serving.ui.live import all_metrics
from jaxllm.version import __version__

ANSWER_SECONDS = 10.0
"""Longest wait for an engine, which answers between two steps."""
_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


class Kernel(msgspec.Struct):
    """The implementation of an operation."""

    operation: str
    backend: str
    problem: str | None
    """Why it is not the fastest one; null where it is."""


class StepShape(msgspec.Struct):
    """A compiled shape of a step, by the tokens that it has room for."""

    tokens: int
    steps: int
    """Steps that ran in it."""
    seconds: float | None
    """Their mean time; null where none ran."""
    planned_seconds: float | None
    """The time that a full step should take, by the chip's figures; null where they are not known."""


class AboutModel(Answer, kw_only=True):
    """The model, its limits and what it takes; lengths in tokens."""

    version: str
    model: str
    runner: Literal["generate", "pooling", "transcribe"]
    chats: bool
    """Whether there is a chat template."""
    images: bool
    adapters: bool
    reasoning: bool
    """Whether reasoning is told apart from the reply."""
    tools: bool
    """Whether calls of tools are told apart from the reply."""
    defaults: dict[str, float]
    """Sampling parameters of requests that have none."""
    max_logprobs: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_tokens: int
    max_concurrency: float
    num_pages: int
    block_size: int
    cache_windows: tuple[int, ...]
    vocab_size: int
    dtype: str
    kv_cache_dtype: str
    prefix_caching: bool
    device: str
    num_devices: int
    data_shards: int
    engines: int
    stages: int
    max_loras: int
    max_drafts: int
    kernels: list[Kernel]
    shapes: list[StepShape]


async def show_about(request: Request) -> Response:
    """Tell the page what the server has."""
    return json_response(about(server_of(request)))


async def show_model(request: Request) -> Response:
    """What the first engine says of memory and programs. Raises `EngineError` where it does not answer soon."""
    server = server_of(request)
    engine = next((each for each in server.llm.engines.engines if each.health.is_up), None)
    if engine is None:
        raise EngineError("no engine is up")
    try:
        answer = await asyncio.wait_for(engine.ask(called("model_view")), ANSWER_SECONDS)
    except TimeoutError:
        raise EngineError(f"the engine did not answer within {ANSWER_SECONDS:g} seconds; try again") from None
    view = msgspec.json.decode(str(answer), type=ModelView)
    return Response(msgspec.json.encode(view), media_type="application/json")


def about(server: ServerState) -> AboutModel:
    """The model and the server, as they are now."""
    info, params = server.llm.info, server.llm.default_params
    replies = server.replies
    return AboutModel(
        version=__version__,
        model=server.model_names[0],
        runner="pooling" if info.pooling is not None else "transcribe" if info.transcribes else "generate",
        chats=bool(server.chat_template),
        images=info.images is not None,
        adapters=info.max_loras > 0,
        reasoning=replies.reasoning is not None,
        tools=replies.tools is not None,
        defaults={name: float(getattr(params, name)) for name in _DEFAULTS},
        max_logprobs=info.max_logprobs,
        max_model_len=info.max_model_len,
        max_num_seqs=info.max_running,
        max_num_batched_tokens=info.max_num_batched_tokens,
        kv_tokens=0 if info.pooling is not None else info.kv_tokens,
        max_concurrency=0.0 if info.pooling is not None else info.max_concurrency,
        num_pages=max(info.num_pages - 1, 0),
        block_size=info.block_size,
        cache_windows=info.cache_windows,
        vocab_size=info.vocab_size,
        dtype=info.dtype,
        kv_cache_dtype=info.kv_cache_dtype,
        prefix_caching=info.enable_prefix_caching,
        device=info.device_kind,
        num_devices=info.num_devices,
        data_shards=info.data_shards,
        engines=len(server.llm.engines.engines),
        stages=len(info.stages),
        max_loras=info.max_loras,
        max_drafts=info.max_drafts,
        kernels=[Kernel(str(name), choice.name, choice.problem) for name, choice in info.kernels.items()],
        shapes=_shapes(info.planned_step_seconds, all_metrics(server).engines),
    )


def _shapes(planned: Mapping[int, float], engines: Sequence[EngineMetrics]) -> list[StepShape]:
    """The shapes that are planned or ran, of all engines together."""
    ran: dict[int, tuple[int, float]] = {}
    for engine in engines:
        for tokens, histogram in engine.steps.sorted():
            steps, seconds = ran.get(tokens, (0, 0.0))
            counts, total, _ = histogram.state()
            ran[tokens] = steps + sum(counts), seconds + total
    return [
        StepShape(tokens, steps, seconds / steps if steps else None, planned.get(tokens))
        for tokens, (steps, seconds) in sorted({**dict.fromkeys(planned, (0, 0.0)), **ran}.items())
    ]
