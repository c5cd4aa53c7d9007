"""What a request says of sampling, and of the form of its output: under OpenAI's names, and vLLM's new and old ones."""

from collections.abc import Mapping
from typing import Any

import msgspec

from jaxllm.errors import RequestError
from jaxllm.requests.beam_options import BeamOptions
from jaxllm.requests.kv_transfer import KEY as TRANSFER
from jaxllm.requests.kv_transfer import read_transfer_params, short_form
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.requests.structured_outputs import KINDS, StructuredOutputsParams
from jaxllm.serving.http.body.base import refused_fields
from jaxllm.serving.openai.generation.validation import width_name
from jaxllm.serving.openai.protocol.generation import GenerationRequest
from jaxllm.serving.openai.protocol.response_format import ResponseFormat
from jaxllm.serving.options.server import ServerOptions

_OWN_MEANING = {
    *("max_tokens", "logprobs", "structured_outputs", "thinking_token_budget", "repetition_detection", "prediction")
}
"""Fields that chats and completions understand differently, or that are not what they are in the engine."""
_SHARED = tuple(
    name
    for name in SamplingParams.__struct_fields__
    if name in GenerationRequest.__struct_fields__ and name not in _OWN_MEANING
)
_NOT_RECOMMENDED = SamplingParams().max_tokens
_OLDER_FORMS = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "structural_tag": "structural_tag",
}
"""vLLM's names of before `structured_outputs`."""


def sampling_params(
    body: GenerationRequest, defaults: SamplingParams, *, max_tokens: int | None, logprobs: int | None, **others: Any
) -> SamplingParams:
    """The parameters of a request; what it leaves out is as in `defaults`, and `others` go before what it says.

    Raises `RequestError`.
    """
    given = {name: value for name in _SHARED if (value := getattr(body, name)) is not None}
    if others.get("structured_outputs") is None:
        others["structured_outputs"] = structured_outputs(body)
    if body.thinking_token_budget not in (None, -1):
        given["thinking_token_budget"] = body.thinking_token_budget
    if body.repetition_detection is not None:
        given["repetition_detection"] = msgspec.to_builtins(body.repetition_detection)
    if body.prediction is not None:
        given["prediction"] = body.prediction.text
    if body.vllm_xargs:
        given["extra_args"] = body.vllm_xargs
    if body.kv_transfer_params:
        given["extra_args"] = with_transfer(body.vllm_xargs, body.kv_transfer_params, stream=bool(body.stream))
    if body.use_beam_search:
        if others["structured_outputs"] is not None:
            raise RequestError("structured outputs cannot be combined with beam search", "use_beam_search")
        return beam_params(body, {**given, **others}, max_tokens=max_tokens, logprobs=logprobs)
    _check_no_beams(body)
    made = msgspec.structs.replace(defaults, **given, **others, max_tokens=max_tokens, logprobs=logprobs)
    if body.stream:
        made.check_streamable()
    return made


def _check_no_beams(body: GenerationRequest) -> None:
    """Raise `RequestError` for what only beam searches take."""
    if body.length_penalty not in (None, 1.0):
        raise RequestError("length_penalty requires use_beam_search", "length_penalty")
    for name in ("early_stopping", "return_beam_tree"):
        if getattr(body, name):
            raise RequestError(f"{name} requires use_beam_search", name)


def with_transfer(extra_args: dict[str, Any] | None, given: dict[str, Any], *, stream: bool) -> dict[str, Any] | None:
    """Extra arguments with what a request says of pages of other servers. Raises `RequestError`."""
    params = read_transfer_params(given)
    if params is None:
        return extra_args
    if params.do_remote_decode and stream:
        raise RequestError(
            f"{TRANSFER}: do_remote_decode cannot be streamed: the answer tells where pages are", "stream"
        )
    return {**(extra_args or {}), TRANSFER: short_form(params)}


def check_one_prompt(params: SamplingParams, num_prompts: int) -> None:
    """Raise `RequestError` for several prompts where pages of one are sent or fetched."""
    if num_prompts > 1 and TRANSFER in (params.extra_args or {}):
        raise RequestError(f"{TRANSFER}: for {num_prompts} prompts; send each in a request of its own", TRANSFER)


def generation_fields(body: GenerationRequest) -> dict[str, Any]:
    """What a request of another interface says of generation, for a chat request: all that its kind does not refuse."""
    refused = refused_fields(type(body))
    return {name: getattr(body, name) for name in GenerationRequest.__struct_fields__ if name not in refused}


def beam_params(
    body: GenerationRequest, given: Mapping[str, Any], *, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    """The parameters of a beam search. Raises `RequestError`, also for what does not go with one.

    What the model's makers recommend for drawing tokens does not matter here.
    """
    if body.stream:
        raise RequestError("beam search cannot be streamed: the best beams are known only at the end", "stream")
    if body.prompt_logprobs is None and "prompt_logprobs" in given:
        raise RequestError("echo with logprobs cannot be combined with beam search", "echo")
    options = BeamOptions(
        width=getattr(body, width_name(body)) or 1,
        n=body.n or 1,
        length_penalty=1.0 if body.length_penalty is None else body.length_penalty,
        early_stopping=body.early_stopping or False,
        with_tree=body.return_beam_tree or False,
    )
    others = {name: value for name, value in given.items() if name not in ("n", "best_of", "temperature")}
    return SamplingParams(**others, temperature=0.0, max_tokens=max_tokens, logprobs=logprobs, beam_search=options)


def recommended_max_tokens(defaults: SamplingParams) -> int | None:
    """The length that the model's makers recommend, if they do."""
    return None if defaults.max_tokens == _NOT_RECOMMENDED else defaults.max_tokens


def shows_token_ids(options: ServerOptions, body: GenerationRequest) -> bool:
    """Whether tokens in logprobs are shown as numbers."""
    asked = body.return_tokens_as_token_ids
    return options.return_tokens_as_token_ids if asked is None else asked


def num_alternatives(value: int | None, vocab_size: int) -> int:
    """How many alternatives per token a request asks for."""
    return vocab_size if value == -1 else value or 0


def structured_outputs(body: GenerationRequest) -> StructuredOutputsParams | None:
    """The form that the request asks for, if any. Raises `RequestError`, also if it asks for several."""
    found, names = _requested_forms(body)
    if len(found) > 1:
        raise RequestError(
            f"{' and '.join(found)}: an output can have only one constraint; give one of them", [*found][1]
        )
    if not found:
        if body.guided_whitespace_pattern is not None:
            raise RequestError("guided_whitespace_pattern requires guided_json", "guided_whitespace_pattern")
        return None
    ((source, fields),) = found.items()
    if body.guided_whitespace_pattern is not None:
        fields.setdefault("whitespace_pattern", body.guided_whitespace_pattern)
    try:
        return StructuredOutputsParams.of(fields)
    except RequestError as error:
        raise _named(error, names, source) from None


def naming_form(error: RequestError, body: GenerationRequest) -> RequestError:
    """The error with the field's name in the request, if it is about the form of the output or the number of beams."""
    if error.parameter == "beam_width":
        error.parameter = width_name(body)
    found, names = _requested_forms(body)
    return error if error.parameter not in names else _named(error, names, next(iter(found)))


def _requested_forms(body: GenerationRequest) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """By the fields that ask for a form, what they ask for; and what the fields of the last are called."""
    found: dict[str, dict[str, Any]] = {}
    names: dict[str, str] = {}
    if body.response_format is not None and body.response_format.type != "text":
        found["response_format"], names = _format_fields(body.response_format)
    if body.structured_outputs is not None:
        given = body.structured_outputs
        found["structured_outputs"] = {
            name: value for name in given.__struct_fields__ if (value := getattr(given, name)) is not None
        }
        names = {name: f"structured_outputs.{name}" for name in given.__struct_fields__}
    for name, kind in _OLDER_FORMS.items():
        if (value := getattr(body, name)) is not None:
            found[name] = {kind: value}
            names = {kind: name, "whitespace_pattern": "guided_whitespace_pattern"}
    return found, names


def _format_fields(form: ResponseFormat) -> tuple[dict[str, Any], dict[str, str]]:
    """OpenAI's `response_format` as fields of `StructuredOutputsParams`, and what these are called in it."""
    if form.type == "json_object":
        return {"json_object": True}, {}
    if form.type == "structural_tag":
        tag = {"structures": form.structures, "triggers": form.triggers, "format": form.format}
        given = {name: value for name, value in tag.items() if value is not None}
        return {"structural_tag": given}, {"structural_tag": "response_format"}
    if form.json_schema is None:
        raise RequestError("response_format.json_schema: this field is required", "response_format.json_schema")
    schema = form.json_schema.schema
    return {"json": {} if schema is None else schema}, {"json": "response_format.json_schema.schema"}


def _named(error: RequestError, names: dict[str, str], source: str) -> RequestError:
    """The error with the field's name in the request."""
    field = error.parameter
    name = source if field is None else names.get(field, field)
    message = str(error)
    if field in (*KINDS, "whitespace_pattern") and message.startswith(field):
        message = name + message[len(field) :]
    return RequestError(message, name)
