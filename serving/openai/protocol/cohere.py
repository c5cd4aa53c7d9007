"""Embeddings as Cohere's interface asks for them (https://docs.cohere.com/reference/embed)."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, UnsetType

from jaxllm.serving.http.body.base import Answer, Body
from jaxllm.serving.http.body.bounds import MOST_DOCUMENTS, AtLeastOne, Int64, Positive, Text, at_most, documented

Vectors = list[list[float]]
EmbeddingType = Literal["float", "base64", "binary", "ubinary"]


class CoherePart(Body, kw_only=True):
    """A part of an input."""

    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: Any = None
    """Of type image_url: the URL of an image, https or data, or an object with it as url."""


class CohereInput(Body, kw_only=True):
    """An input of several parts, which are read one after the other."""

    content: list[CoherePart]


class CohereEmbedRequest(Body, kw_only=True):
    """Texts to embed."""

    model: str | None = None
    """One of /v1/models; default: the first."""
    texts: Annotated[list[Text], documented(minItems=1)] | None = None
    """The texts; or else inputs."""
    inputs: Annotated[list[CohereInput], documented(minItems=1)] | None = None
    """The texts, in parts."""
    input_type: str | None = None
    """Purpose of the texts, such as search_query: chooses one of the model's own prompts, if it has any."""
    embedding_types: list[EmbeddingType] | None = None
    """Forms of the embeddings: float (the default), base64 of float32, or a bit for each number, in signed (binary) or
    unsigned (ubinary) bytes."""
    output_dimension: AtLeastOne | None = None
    """Keep this many first numbers; for models trained for it (Matryoshka)."""
    max_tokens: AtLeastOne | None = None
    """Keep only this many tokens of a text that is longer."""
    truncate: Literal["NONE", "START", "END"] | None = None
    """Part of a text that is cut if it is too long: END (the default), START, or NONE for an error."""
    priority: Int64 | None = None
    """Lower numbers go first, where the server schedules by priority; default 0."""
    request_id: str | None = None
    """Part of the response's id and of the log; by default random."""
    timeout: Positive | None = None
    """Seconds in which the whole request must be answered; at most, and by default, the server's limit."""

    images: Annotated[list[str], at_most(MOST_DOCUMENTS)] | None = None
    """URLs of images, https or data, in place of texts or inputs."""
    mm_processor_kwargs: dict[str, Any] | None = None
    """Fields of the image processor, for the images of this request."""


class CohereEmbeddings(Answer, kw_only=True):
    """The embeddings in each form that was asked for."""

    float: Vectors | UnsetType = UNSET
    base64: list[str] | UnsetType = UNSET
    binary: list[list[int]] | UnsetType = UNSET
    ubinary: list[list[int]] | UnsetType = UNSET


class CohereVersion(Answer, kw_only=True):
    """Cohere's version of the interface."""

    version: str = "2"


class CohereUnits(Answer, kw_only=True):
    """Tokens that went in."""

    input_tokens: int


class CohereMeta(Answer, kw_only=True):
    """Metadata of the response."""

    api_version: CohereVersion
    billed_units: CohereUnits


class CohereEmbedResponse(Answer, kw_only=True):
    """Embeddings in the order of the texts."""

    id: str
    embeddings: CohereEmbeddings
    texts: list[str] | None
    meta: CohereMeta
    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"
