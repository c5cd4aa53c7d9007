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
from jaxllm.serving.openai.pooling.pooled import pool, usage
from jaxllm.serving.openai.protocol.cohere import (
    CohereEmbeddings,
    CohereEmbedRequest,
    CohereEmbedResponse,
    CohereMeta,
    CohereUnits,
    CohereVersion,
)

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
    texts, field = _texts(body)
    with naming_fields(dimensions="output_dimension", truncate_prompt_tokens="max_tokens"):
        params = PoolingParams(
            task="embed",
            dimensions=body.output_dimension,
            truncate_prompt_tokens=None if body.truncate == "NONE" else body.max_tokens or -1,
            truncation_side="left" if body.truncate == "START" else None,
        )
        prompts = [_prefix(server, body.input_type) + text for text in texts]
        if body.truncate == "NONE" and body.max_tokens is not None:
            await _check_lengths(server, prompts, field, body.max_tokens)
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


def _texts(body: CohereEmbedRequest) -> tuple[list[str], str]:
    """The texts, and the field that has them. Raises `RequestError`."""
    if (body.texts is None) == (body.inputs is None):
        raise RequestError("give exactly one of texts and inputs", "texts")
    if body.texts is not None:
        texts, field = body.texts, "texts"
    else:
        texts = ["\n".join(part.text for part in each.content) for each in body.inputs or ()]
        field = "inputs"
    if not texts:
        raise RequestError(f"{field}: the list is empty", field)
    return texts, field


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
