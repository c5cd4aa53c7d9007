"""Transcriptions and translations: sound in, text out."""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, closing

from starlette.requests import Request
from starlette.responses import Response

from jaxllm.errors import QueueFullError, QuotaError
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.http.connection.connections import upload_of
from jaxllm.serving.http.errors import HttpError
from jaxllm.serving.http.identity import Identity, identify
from jaxllm.serving.http.middleware.access_log import ENGINE_REQUESTS
from jaxllm.serving.http.sound import RequestSound
from jaxllm.serving.http.state import ServerState, server_of
from jaxllm.serving.http.stream import unless_gone
from jaxllm.serving.http.submission import submit
from jaxllm.serving.llm.output_stream import OutputStream
from jaxllm.serving.media.audio.resample import Samples
from jaxllm.serving.openai.audio.answers import answer
from jaxllm.serving.openai.audio.form import read_form, wanted_of
from jaxllm.serving.openai.audio.stream import TranscriptStream
from jaxllm.serving.openai.protocol.audio import AudioRequest, TranscriptionRequest, TranslationRequest
from jaxllm.serving.tenancy.access import owner_of
from jaxllm.serving.text.input_processor import TextRequest
from jaxllm.serving.text.prompts import Prompt
from jaxllm.serving.transcription.model import Task
from jaxllm.serving.transcription.transcriber import AT_A_TIME, Heard

_LONGEST_WAIT = 5.0
"""Seconds until a window is offered to the engine again."""


async def create_transcription(request: Request) -> Response:
    """Write down what is said in a file of sound."""
    return await _respond(request, TranscriptionRequest, "transcribe")


async def create_translation(request: Request) -> Response:
    """Translate what is said in a file of sound into English."""
    return await _respond(request, TranslationRequest, "translate")


async def _respond(request: Request, kind: type[AudioRequest], task: Task) -> Response:
    server = server_of(request)
    server.check_accepting()
    _ = server.tokenizer
    sound = _sound_of(server, request)
    body, data = await read_form(request, server, kind)
    identity = identify(request, server, body, "transcription")
    wanted = wanted_of(body, sound.model, task)
    transcriber = sound.transcriber(Listener(request, server, identity, stream=bool(body.stream)))
    # Whatever is wrong with it is known before a response begins.
    transcriber.text_tokens(wanted.before)
    at_a_time = _at_a_time(request, server)

    async def whole(samples: Samples) -> Response:
        progress, segments = transcriber.transcribe(samples, wanted, at_a_time=at_a_time)
        async with aclosing(segments):
            found = [each async for each in segments]
        return answer(body.response_format or "json", found, progress, wanted)

    async def decoded() -> Samples:
        try:
            return await sound.samples(data)
        finally:
            upload_of(request.scope).release()

    async with AsyncExitStack() as held:
        await unless_gone(request.receive, sound.places.acquire())
        held.callback(sound.places.release)
        samples = await unless_gone(request.receive, decoded())
        if not body.stream:
            return await unless_gone(request.receive, whole(samples))
        progress, segments = transcriber.transcribe(samples, wanted, at_a_time=at_a_time)
        interval = server.options.sse_keep_alive_interval
        return TranscriptStream(progress, segments, held.pop_all(), request.scope["request_id"], keep_alive=interval)


def _sound_of(server: ServerState, request: Request) -> RequestSound:
    if server.sound is None:
        message = "the model's files do not say how its sound is to be processed; the server's log has the reason"
        raise HttpError(400, f"{request.url.path}: {message}", code="unsupported_for_model")
    return server.sound


def _at_a_time(request: Request, server: ServerState) -> int:
    """Windows that are heard at the same time: no more than the owner may have running requests."""
    account = server.access.account(owner_of(request))
    most = None if account is None else account.quota.max_concurrent_requests
    return AT_A_TIME if most is None else min(most, AT_A_TIME)


class Listener:
    """Asks the engine about windows of the sound of one HTTP request."""

    def __init__(self, request: Request, server: ServerState, identity: Identity, *, stream: bool) -> None:
        self._request, self._server, self._stream = request, server, stream
        (self._name,) = identity.engine_ids
        self._numbers = itertools.count()
        self._asked: list[TextRequest] = []

    async def __call__(
        self, prompt: list[int], features: Samples, params: SamplingParams
    ) -> AsyncGenerator[Heard, None]:
        """See `Hear`. Raises `RequestError`, `QueueFullError`, `QuotaError` and `EngineError`."""
        results = await self._submitted(prompt, features, params)
        try:
            with closing(results):
                async for output in results:
                    for each in output.outputs:
                        scores = [
                            {token: found.logprob for token, found in choices.items()}
                            for choices in each.logprobs or ()
                        ]
                        yield Heard(each.token_ids, scores)
        finally:
            # Until now another engine could have had to hear it again. What is logged in the end must not keep it.
            for child in results.request.children:
                child.media = None

    async def _submitted(self, prompt: list[int], features: Samples, params: SamplingParams) -> OutputStream:
        """The results of a request to the engine. Where the first is taken, others wait until they are."""
        about: Prompt = {"prompt_token_ids": prompt, "multi_modal_data": {"audio": features}}
        while True:
            name = f"{self._name}-{next(self._numbers)}"
            requests = await self._server.llm.prepare([about], params, [name], stream=self._stream)
            try:
                (results,) = submit(self._request, self._server, requests)
            except (QueueFullError, QuotaError) as error:
                if not (self._asked and self._server.accepting):
                    raise
                await asyncio.sleep(min(error.retry_after, _LONGEST_WAIT))
            else:
                self._asked += requests
                self._request.scope[ENGINE_REQUESTS] = self._asked
                return results
