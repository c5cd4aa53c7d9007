"""Forms that ask about sound: read and checked."""

import io
from typing import TypeVar, get_type_hints

import msgspec
from starlette.requests import Request

from jaxllm.errors import RequestError
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.http.body.form import FormLimits, receive_form
from jaxllm.serving.http.state import ServerState
from jaxllm.serving.media.errors import MediaTooLargeError
from jaxllm.serving.openai.protocol.audio import (
    MOST_KEYWORDS,
    MOST_LANGUAGES,
    MOST_PROMPT,
    AudioRequest,
    TranscriptionRequest,
)
from jaxllm.serving.transcription.model import Task, TranscriptionModel
from jaxllm.serving.transcription.transcriber import Wanted

_LIMITS = FormLimits(fields=MOST_KEYWORDS + MOST_LANGUAGES + 64, field_bytes=4 * MOST_PROMPT)
_SAMPLING = (
    *("temperature", "seed", "top_p", "top_k", "min_p"),
    *("frequency_penalty", "presence_penalty", "repetition_penalty"),
)

Kind = TypeVar("Kind", bound=AudioRequest)


async def read_form(request: Request, server: ServerState, kind: type[Kind]) -> tuple[Kind, bytes]:
    """The fields of a form, and its file. Raises `RequestError` and `HttpError`."""
    most = server.options.max_audio_bytes
    file = io.BytesIO()
    form = await receive_form(request, file, "the fields file and model", limits=_LIMITS)
    data = file.getvalue()
    if len(data) > most:
        raise MediaTooLargeError(
            f"the file has {len(data)} bytes; at most {most} are allowed (--max-audio-bytes)", "file"
        )
    lists = {name for name, hint in get_type_hints(kind).items() if "list[" in str(hint)}
    items = [(f"{name}[]" if name in lists else name, text) for name, text in form.items]
    body = await server.bodies.read_items(request, kind, items)
    _check(body)
    return body, data


def _check(body: AudioRequest) -> None:
    """Raise `RequestError` for fields that cannot be combined, and for times of words."""
    form = body.response_format or "json"
    if body.stream and form != "json":
        raise RequestError(f"response_format={form!r} cannot be combined with stream; use json", "response_format")
    if body.max_completion_tokens is not None and body.max_completion_tokens < 1:
        raise RequestError("max_completion_tokens: must be at least 1", "max_completion_tokens")
    if not isinstance(body, TranscriptionRequest) or not body.timestamp_granularities:
        return
    name = "timestamp_granularities"
    if "word" in body.timestamp_granularities:
        raise RequestError(f"{name}: times of words are not supported, only those of segments", name)
    if form != "verbose_json":
        raise RequestError(f"{name} requires response_format='verbose_json'", name)


def wanted_of(body: AudioRequest, model: TranscriptionModel, task: Task) -> Wanted:
    """What a form asks of a model. Raises `RequestError`."""
    model.check_task(task)
    languages = body.languages or []
    given = {name: value for name in _SAMPLING if (value := getattr(body, name)) is not None}
    params = msgspec.structs.replace(SamplingParams(temperature=0.0), **given, max_tokens=body.max_completion_tokens)
    return Wanted(
        task=task,
        language=model.language(body.language),
        languages=tuple(model.known_language(each, f"languages[{index}]") for index, each in enumerate(languages)),
        before=". ".join(each for each in (", ".join(body.keywords or ()), body.prompt) if each),
        params=params,
        measures=body.response_format == "verbose_json",
    )
