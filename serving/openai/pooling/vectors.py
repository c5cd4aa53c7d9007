"""Vectors as text or bytes, in vLLM's number formats."""

import base64
import sys
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
from starlette.responses import Response

from jaxllm.errors import RequestError, quoted
from jaxllm.serving.http.identity import Identity
from jaxllm.serving.openai.protocol.pooling import EmbeddingRequest, TextUsage, VectorBytes, VectorsMetadata

DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "fp8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "fp8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
"""By the names of `embed_dtype`."""
FORMATS = ("float", "base64", "bytes", "bytes_only")
ORDERS = ("native", "little", "big")
MOST_DESCRIBED = 128
"""Most vectors of an answer in bytes whose header says where each begins: headers are limited everywhere."""


class VectorFormat:
    """How a request wants its vectors. Raises `RequestError` for what is not known."""

    def __init__(self, body: EmbeddingRequest) -> None:
        self.encoding = _chosen("encoding_format", body.encoding_format or "float", FORMATS)
        self._name = _chosen("embed_dtype", body.embed_dtype or "float32", tuple(DTYPES))
        order = _chosen("endianness", body.endianness or "native", ORDERS)
        self._order = sys.byteorder if order == "native" else order
        if self.encoding == "bytes" and _num_texts(body) > MOST_DESCRIBED:
            raise RequestError(
                f"encoding_format='bytes': {_num_texts(body)} texts; the metadata header describes at most "
                f"{MOST_DESCRIBED}: use bytes_only or base64",
                "encoding_format",
            )

    @property
    def is_binary(self) -> bool:
        """Whether the answer is bytes and not JSON."""
        return self.encoding in ("bytes", "bytes_only")

    def bytes(self, values: np.ndarray) -> bytes:
        """Numbers of any shape as bytes."""
        numbers = values.astype(DTYPES[self._name], copy=False)
        # NumPy cannot swap the bytes of types that it does not know itself.
        words = numbers.view(f"u{numbers.dtype.itemsize}")
        return words.astype(words.dtype.newbyteorder("<" if self._order == "little" else ">"), copy=False).tobytes()

    def json(self, values: np.ndarray) -> Any:
        """Numbers as they stand in JSON: a list, or base64."""
        if self.encoding == "base64":
            return base64.b64encode(self.bytes(values)).decode()
        return values.tolist()

    def response(self, identity: Identity, vectors: Sequence[np.ndarray], usage: TextUsage) -> Response:
        """All vectors one after the other; with `bytes` the header `metadata` says what they are."""
        parts = [self.bytes(values) for values in vectors]
        headers = {}
        if self.encoding == "bytes":
            described, start = [], 0
            for index, (values, part) in enumerate(zip(vectors, parts, strict=True)):
                end = start + len(part)
                described.append(
                    VectorBytes(
                        index=index,
                        embed_dtype=self._name,
                        endianness=self._order,
                        start=start,
                        end=end,
                        shape=list(values.shape),
                    )
                )
                start = end
            metadata = VectorsMetadata(
                id=identity.id, created=identity.created, model=identity.model, data=described, usage=usage
            )
            headers["metadata"] = msgspec.json.encode(metadata).decode()
        return Response(b"".join(parts), headers=headers, media_type="application/octet-stream")


def _chosen(name: str, value: str, known: Sequence[str]) -> str:
    if value not in known:
        raise RequestError(f"{name}={quoted(value)}: choose {', '.join(known[:-1])} or {known[-1]}", name)
    return value


def _num_texts(body: EmbeddingRequest) -> int:
    """Texts of a request: a list of numbers is one."""
    given = body.input
    return len(given) if isinstance(given, list) and not any(isinstance(each, int) for each in given[:1]) else 1
