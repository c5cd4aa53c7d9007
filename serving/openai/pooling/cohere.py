"""Embeddings by Cohere's interface, version 2."""

import base64
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.errors import RequestError, quoted
from jaxllm.pooling.params import PoolingParams
from jaxllm.serving.http.renaming import naming_fields
from jaxllm.serving.http.responses import json_response
from jaxllm.serving.http.state import ServerState, server_of
from jaxllm.serving.openai.generation.validation import check_texts
from jaxllm.serving.openai.pooling.parts import HasContent, renderer, sides_of
from jaxllm.serving.openai.pooling.pooled import pool, usage
from jaxllm.serving.openai.protocol.cohere import (
    CohereEmbeddings,
    CohereEmbedRequest,
    CohereEmbedResponse,
    CohereMeta,
    CoherePart,
    CohereUnits,
    CohereVersion,
)
from jaxllm.serving.openai.protocol.messages import ContentPart, Contents
from jaxllm.serving.pooling.inputs import GivenPrompt
from jaxllm.serving.pooling.sides import Render, Side, rendered

_TYPES = {
    "search_query": ("query",),
    "search_document": ("document", "passage"),
    "classification": (),
    "clustering": (),
}
"""Cohere's purposes of texts, and other names that models have for them."""
_PROMPTS = "config_sentence_transformers.json"


async def create_cohere_embedding(request: Request) -> Response:
    """Make an embedding of each text."""
    server = server_of(request)
    server.check_accepting()
    body = await server.bodies.read(request, CohereEmbedRequest)
    given, field = _given(body)
    names = [f"{field}[{place}]" for place in range(len(given))]
    with naming_fields(dimensions="output_dimension", truncate_prompt_tokens="max_tokens"):
        params = PoolingParams(
            task="embed",
            dimensions=body.output_dimension,
            truncate_prompt_tokens=None if body.truncate == "NONE" else body.max_tokens or -1,
            truncation_side="left" if body.truncate == "START" else None,
        )
        check_texts(field, len(given), server.limits)
        sides = await sides_of(request, server, given, names, body.mm_processor_kwargs)
        prefix = _prefix(server, body.input_type)
        texts = [prefix + side for side in sides if isinstance(side, str)]
        if body.truncate == "NONE" and body.max_tokens is not None and texts:
            await _check_lengths(server, texts, field, body.max_tokens)
        prompts = await server.llm.run_text(_prompts, renderer(server), prefix, sides)
        identity, results = await pool(request, server, body, prompts, params, prefix="embd", field=field)
    vectors = [each.outputs.data for each in results]
    return json_response(
        CohereEmbedResponse(
            id=identity.id,
            embeddings=_embeddings(vectors, body.embedding_types or ["float"]),
            texts=body.texts,
            meta=CohereMeta(
                api_version=CohereVersion(), billed_units=CohereUnits(input_tokens=usage(results).total_tokens)
            ),
        )
    )


def _given(body: CohereEmbedRequest) -> tuple[list[str | HasContent], str]:
    """The texts or parts, and the field that has them. Raises `RequestError`."""
    fields = [name for name in ("texts", "inputs", "images") if getattr(body, name) is not None]
    if body.images == [] and len(fields) == 2:
        fields.remove("images")
    if len(fields) != 1:
        raise RequestError("give exactly one of texts, inputs and images", "texts")
    (field,) = fields
    given: list[str | HasContent]
    if field == "texts":
        given = [*(body.texts or ())]
    elif field == "inputs":
        given = [Contents(content=[_part(part) for part in each.content]) for each in body.inputs or ()]
    else:
        parts = (ContentPart(type="image_url", image_url=url) for url in body.images or ())
        given = [Contents(content=[part]) for part in parts]
    if not given:
        raise RequestError(f"{field}: the list is empty", field)
    return given, field


def _part(part: CoherePart) -> ContentPart:
    return ContentPart(type=part.type, text=part.text, image_url=part.image_url)


def _prompts(render: Render, prefix: str, sides: Sequence[str | Side]) -> list[GivenPrompt]:
    """Texts with what the model wants before them, and prompts of a user's message for those with images."""
    return [prefix + side if isinstance(side, str) else rendered(render, [_user(prefix, side)]) for side in sides]


def _user(prefix: str, side: Side) -> tuple[str, Side]:
    before = [{"type": "text", "text": prefix}] if prefix else []
    return "user", Side([*before, *side.parts], side.images)


def _prefix(server: ServerState, input_type: str | None) -> str:
    """What the model wants before texts of a type. Raises `RequestError` for one that neither it nor Cohere knows."""
    if input_type is None:
        return ""
    prompts = _model_prompts(server.llm.info.model_folder)
    for name in (input_type, *_TYPES.get(input_type, ())):
        if name in prompts:
            return prompts[name]
    if input_type not in _TYPES:
        known = ", ".join(dict.fromkeys([*_TYPES, *prompts]))
        raise RequestError(f"input_type={quoted(input_type)}: choose one of {known}", "input_type")
    return ""


@lru_cache(maxsize=4)
def _model_prompts(folder: str) -> Mapping[str, str]:
    """The prompts that a model of sentence-transformers brings, by their names."""
    try:
        prompts = json.loads((Path(folder) / _PROMPTS).read_text(encoding="utf-8"))["prompts"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {name: text for name, text in prompts.items() if isinstance(text, str)} if isinstance(prompts, dict) else {}


async def _check_lengths(server: ServerState, texts: Sequence[str], field: str, most: int) -> None:
    counts = [len(ids) for ids in await server.llm.run_text(server.tokenizer.encode, texts)]
    if max(counts) > most:
        place = counts.index(max(counts))
        raise RequestError(
            f"{field}[{place}] has {counts[place]} tokens, more than max_tokens={most}: truncate is NONE", field
        )


def _embeddings(vectors: Sequence[np.ndarray], types: Sequence[str]) -> CohereEmbeddings:
    """The vectors in each of the forms. Raises `RequestError`."""
    made = CohereEmbeddings()
    for kind in types:
        if kind == "float":
            made.float = [each.tolist() for each in vectors]
        elif kind == "base64":
            made.base64 = [base64.b64encode(each.astype("<f4").tobytes()).decode() for each in vectors]
        elif len(vectors[0]) % 8:
            raise RequestError(
                f"embedding_types: {kind} needs embeddings with a multiple of 8 dimensions, not {len(vectors[0])}",
                "embedding_types",
            )
        elif kind == "ubinary":
            made.ubinary = [_bits(each).tolist() for each in vectors]
        else:
            made.binary = [(_bits(each).astype(np.int16) - 128).tolist() for each in vectors]
    return made


def _bits(vector: np.ndarray) -> np.ndarray:
    """A bit for each number, the first the highest of its byte: whether it is not negative."""
    return np.packbits(vector >= 0)
