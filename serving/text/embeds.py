"""Prompts as embeddings: arrays of NumPy, PyTorch and JAX, and files of them in base64. Nothing is unpickled."""

import binascii
import math
import re
import sys
from base64 import b64decode
from typing import Any, Literal

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, deserialize

from jaxllm.engine.validation import RequestLimits, unknown_token
from jaxllm.errors import RequestError, quoted, shortened
from jaxllm.models.checkpoint.safetensors_file import DTYPES
from jaxllm.models.checkpoint.torch_file import read_torch_tensor
from jaxllm.models.errors import ModelError
from jaxllm.requests.prompt_embeds import FIELD, NO_TOKEN
from jaxllm.serving.text.prompts import IntArray, ParsedPrompt, as_token_ids

_NUMPY = b"\x93NUMPY"
_ZIP = b"PK\x03\x04"
_MAX_HEADER_BYTES = 10_000
"""NumPy's own limit of what it reads from strangers."""
_NUMPY_HEADER = re.compile(
    rb"\{'descr': ?'(?P<descr>[<>=|]?[biufcOSUVmM]\d{0,3})', ?'fortran_order': ?(?P<fortran_order>True|False), ?"
    rb"'shape': ?\((?P<shape>(?:\d{1,18}, ?){0,8}(?:\d{1,18})?)\),? ?\} *\n?"
)


def as_array(given: Any) -> np.ndarray:
    """The embeddings of a caller in a program: an array of NumPy, or what can be one. Raises `RequestError`."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(given, torch.Tensor):
        # NumPy has no name for PyTorch's bfloat16; float32 has all its values.
        given = given.detach().cpu()
        given = (given.float() if given.dtype == torch.bfloat16 else given).numpy()
    try:
        return np.asarray(given)
    except ValueError:  # lists of different lengths
        raise _wrong(f"expected an array of shape [tokens, width], got a {type(given).__name__}") from None


def read_base64(text: str) -> np.ndarray:
    """The array in a file in base64: a view where it can be one.

    The file is a tensor of `torch.save`, an array of `numpy.save`, or safetensors with one tensor. Raises
    `RequestError`.
    """
    try:
        data = b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _wrong(f"not base64 ({shortened(error)})") from None
    try:
        if data.startswith(_ZIP):
            return read_torch_tensor(data)
        if data.startswith(_NUMPY):
            return _read_numpy(data)
        return _read_safetensors(data)
    except ModelError as error:
        raise _wrong(shortened(error)) from None


def place_embeds(prompt: ParsedPrompt, limits: RequestLimits, most: int | None) -> None:
    """Check the embeddings of a prompt, and let its token ids say where they are.

    Raises `RequestError` for another shape or type, for more than `max_model_len` allows (unless at most `most` of them
    are to be kept), and for values that are not finite.
    """
    limits.check_width()
    array = _matrix(as_array(prompt.embeds), limits)
    if prompt.is_token is not None:
        prompt.token_ids, array = _beside_tokens(prompt, array, limits)
    elif most is not None:
        array = prompt.cut(array, most)
    if len(array) >= limits.max_model_len and most is None:
        raise limits.too_long(f"{len(array)} embeddings")
    if prompt.token_ids is None:
        prompt.token_ids = np.full(len(array), NO_TOKEN, np.int32)
    prompt.embeds = _finite(array, limits)


def _beside_tokens(prompt: ParsedPrompt, array: np.ndarray, limits: RequestLimits) -> tuple[IntArray, np.ndarray]:
    """Token ids, `NO_TOKEN` where there are none, and the embeddings of these places."""
    given, is_token = as_token_ids(prompt.token_ids), np.asarray(prompt.is_token)
    if is_token.dtype != np.bool_ or not given.shape == is_token.shape == array.shape[:1]:
        raise RequestError(
            f"prompt_is_token_ids: expected {len(array)} booleans and token IDs, one per row of prompt_embeds, got "
            f"{is_token.size} and {given.size}",
            "prompt_is_token_ids",
        )
    if (given[is_token] < 0).any():
        raise unknown_token(np.where(is_token, given, 0), limits.vocab_size)
    return np.where(is_token, given, NO_TOKEN), array[~is_token]


def _matrix(array: np.ndarray, limits: RequestLimits) -> np.ndarray:
    """The array as [tokens, width]."""
    if array.ndim == 3 and array.shape[0] == 1:
        array = array[0]
    if array.ndim != 2:
        raise _wrong(f"expected an array of shape [tokens, width], got one of shape {list(array.shape)[:8]}")
    if array.dtype.kind != "f" and array.dtype != ml_dtypes.bfloat16:
        raise _wrong(f"values must be float32, bfloat16, float16 or float64, not {array.dtype.name}")
    limits.check_width(array.shape[1])
    if not len(array):
        raise RequestError("prompt_embeds: the prompt is empty; give at least one row", FIELD)
    return array


def _finite(array: np.ndarray, limits: RequestLimits) -> np.ndarray:
    """The embeddings in the engine's type."""
    assert limits.engine is not None
    dtype = np.dtype(getattr(ml_dtypes, limits.engine.dtype, limits.engine.dtype))
    with np.errstate(over="ignore", invalid="ignore"):
        rows = np.ascontiguousarray(array, dtype)
    finite = np.isfinite(rows)
    if not finite.all():
        row, column = (int(place[0]) for place in np.nonzero(~finite))
        raise _wrong(f"value {column} of row {row} is not finite in {limits.engine.dtype}")
    return rows


def _read_numpy(data: bytes) -> np.ndarray:
    """An array of `numpy.save`: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html.

    The header is a Python literal, and NumPy evaluates it. Nested deep enough that ends in `MemoryError`, so here a
    pattern reads the one form that writers give it.
    """
    length_bytes = {b"\x01\x00": 2, b"\x02\x00": 4}.get(data[6:8])
    if length_bytes is None:
        raise _wrong("not a numpy.save file of format version 1.0 or 2.0")
    begin = 8 + length_bytes
    start = begin + int.from_bytes(data[8:begin], "little")
    is_whole = start <= min(len(data), begin + _MAX_HEADER_BYTES)
    header = _NUMPY_HEADER.fullmatch(data, begin, start) if is_whole else None
    if header is None:
        raise _wrong("not a numpy.save file with one numeric array, or truncated")
    try:
        dtype = np.dtype(header["descr"].decode())
    except TypeError:
        raise _wrong(f"NumPy has no dtype {quoted(header['descr'].decode())}") from None
    if dtype.kind != "f":
        raise _wrong(
            f"a NumPy file must contain float32, float16 or float64, not {dtype}; use safetensors for bfloat16"
        )
    shape = [int(size) for size in header["shape"].replace(b",", b" ").split()]
    if len(data) - start != math.prod(shape) * dtype.itemsize:
        raise _wrong(f"a NumPy file of shape {shape} must have {math.prod(shape) * dtype.itemsize} bytes of data")
    return _shaped(memoryview(data)[start:], dtype, shape, "F" if header["fortran_order"] == b"True" else "C")


def _read_safetensors(data: bytes) -> np.ndarray:
    try:
        tensors = deserialize(data)  # type: ignore[no-untyped-call]
    except SafetensorError:
        raise _wrong("not a torch.save, numpy.save or safetensors file") from None
    if len(tensors) != 1:
        raise _wrong(f"a safetensors file must have one tensor, not {len(tensors)}")
    ((_, tensor),) = tensors
    dtype = DTYPES.get(tensor["dtype"])
    if dtype is None:
        raise _wrong(f"values must be float32, bfloat16, float16 or float64, not {tensor['dtype']}")
    return _shaped(tensor["data"], dtype, tensor["shape"])


def _shaped(
    data: bytes | memoryview, dtype: np.dtype[Any], shape: list[int], order: Literal["C", "F"] = "C"
) -> np.ndarray:
    """The array, a view of its bytes: there are as many as the shape says."""
    try:
        return np.frombuffer(data, dtype).reshape(shape, order=order)
    except ValueError:  # an empty one can give its other axes any size, and any number of axes
        raise _wrong(f"an array of shape {shape[:8]} exceeds NumPy's limits") from None


def _wrong(message: str) -> RequestError:
    return RequestError(f"prompt_embeds: {message}", FIELD)
