"""Embeddings as prompts in a program: which arrays, and what stands alongside them."""

import io
import json
import struct
from base64 import b64encode
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from jaxllm.engine.validation import RequestLimits
from jaxllm.errors import PromptTooLongError, RequestError
from jaxllm.requests.prompt_embeds import NO_TOKEN
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.text.embeds import read_base64
from jaxllm.serving.text.input_processor import InputProcessor, TextRequest
from tests.serving.conftest import engine_info

ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)


def prepare(prompt: Any, *, dtype: str = "float32", size: int | None = 4, **params: Any) -> TextRequest:
    limits = RequestLimits.of(engine_info(dtype=dtype, embedding_size=size))
    (made,) = InputProcessor(None, limits).prepare([prompt], SamplingParams(**params), ["r"])
    return made


@pytest.mark.parametrize(
    "given", [ROWS, ROWS[None], ROWS.tolist(), ROWS.astype(np.float64), ROWS.astype(ml_dtypes.bfloat16),
              torch.from_numpy(ROWS).bfloat16().requires_grad_(), torch.from_numpy(ROWS).half()],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_arrays(given: Any, dtype: str) -> None:
    made = prepare({"prompt_embeds": given, "prompt": "as text", "cache_salt": "s"}, dtype=dtype, n=2)
    assert (made.prompt, made.prompt_token_ids, len(made.children)) == ("as text", [0, 0, 0], 2)
    for child in made.children:
        assert child.prompt_embeds is not None
        assert child.prompt_embeds.rows.dtype.name == dtype
        assert np.array_equal(child.prompt_embeds.rows.astype(np.float32), ROWS)
        assert child.prompt_token_ids.tolist() == [NO_TOKEN] * 3
        assert child.cache_salt == "s"


def test_beside_tokens() -> None:
    mixed = {"prompt_embeds": ROWS, "prompt_token_ids": [7, 8, 9], "prompt_is_token_ids": [False, True, False]}
    made = prepare(mixed)
    (child,) = made.children
    assert child.prompt_token_ids.tolist() == [NO_TOKEN, 8, NO_TOKEN]
    assert child.prompt_embeds is not None
    assert np.array_equal(child.prompt_embeds.rows, ROWS[[0, 2]])
    (cut,) = prepare(mixed, truncate_prompt_tokens=2).children
    assert cut.prompt_embeds is not None
    assert (cut.prompt_token_ids.tolist(), cut.prompt_embeds.rows.tolist()) == ([8, NO_TOKEN], ROWS[2:].tolist())
    (none,) = prepare({**mixed, "prompt_is_token_ids": [False, True, True]}, truncate_prompt_tokens=2).children
    assert (none.prompt_token_ids.tolist(), none.prompt_embeds) == ([8, 9], None)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"prompt_embeds": [[1.0], [1.0, 2.0]]}, "expected an array"),
        ({"prompt_embeds": "text"}, "expected an array of shape"),
        ({"prompt_embeds": ROWS.astype(np.int32)}, "not int32"),
        ({"prompt_embeds": ROWS[:, :3]}, "rows have 3 values"),
        ({"prompt_embeds": np.full((3, 4), np.nan)}, "value 0 of row 0 is not finite"),
        ({"prompt_token_ids": [7, 8, 9]}, "prompt_is_token_ids"),
        ({"prompt_token_ids": [7, 8, 9], "prompt_is_token_ids": [True]}, "expected 3 booleans"),
        ({"prompt_token_ids": [7, -2, 9], "prompt_is_token_ids": [True] * 3}, "prompt token 1 is -2"),
        ({"prompt_token_ids": [7, 400, 9], "prompt_is_token_ids": [True] * 3}, "prompt token 1 is 400"),
    ],
)
def test_errors(more: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        prepare({"prompt_embeds": ROWS, **more})


def test_limits() -> None:
    with pytest.raises(PromptTooLongError, match="32 embeddings"):
        prepare({"prompt_embeds": np.zeros((32, 4), np.float32)})
    with pytest.raises(RequestError, match="--enable-prompt-embeds"):
        prepare({"prompt_embeds": ROWS}, size=None)
    with pytest.raises(RequestError, match=r"is not finite in float16"):
        prepare({"prompt_embeds": ROWS * 1e6}, dtype="float16")


def numpy_file(header: str, data: bytes = b"", version: bytes = b"\1\0") -> bytes:
    """A file of version 1.0 (or 2.0) of NumPy's format with any header."""
    length = struct.pack("<H" if version == b"\1\0" else "<I", len(header))
    return b"\x93NUMPY" + version + length + header.encode("latin1") + data


def of_shape(shape: str, data: bytes = b"", descr: str = "<f4") -> bytes:
    return numpy_file(f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}", data)


def safetensors_file(shape: list[int]) -> bytes:
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    return struct.pack("<Q", len(header)) + header


def torch_file(tensor: torch.Tensor) -> bytes:
    file = io.BytesIO()
    torch.save(tensor, file)
    return file.getvalue()


HOSTILE = {
    "negative axes": of_shape("(-2, -3)", bytes(24)),
    "truth values as axes": of_shape("(True, True)", bytes(4)),
    "axes beyond all numbers": of_shape(f"({'9' * 6000},)"),
    "axes whose product is too large": of_shape("(0, 999999999999999999, 999999999999999999)"),
    "200 axes": of_shape(f"({'1, ' * 200})", bytes(4)),
    "an open bracket": numpy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (2,"),
    "4,000 open brackets": numpy_file("(" * 4000),
    "9,000 signs": numpy_file("-" * 9000 + "1"),
    "a set of dictionaries": numpy_file("{{1: []}: 2}"),
    "a list as a key": numpy_file("{[]: 1, 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}"),
    "numbers as keys": numpy_file("{1: 1, 'a': 2}"),
    "no such type": of_shape("(1, 1)", bytes(3), "<i3"),
    "a long header": numpy_file(f"{{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)}}{' ' * 10_000}", bytes(4)),
    "a longer header than the file": numpy_file(" " * 9)[:-1],
    "no header": b"\x93NUMPY",
    "version 3": numpy_file("{}", version=b"\3\0"),
    "safetensors, huge axes beside none": safetensors_file([0, 2**63 - 1]),
    "safetensors, 100 axes": safetensors_file([0] * 100),
    "torch, huge axes beside none": torch_file(torch.empty(0).as_strided((0, 2**62), (2**62, 1))),
    "torch, 70 axes": torch_file(torch.zeros([1] * 70)),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(name: str) -> None:
    with pytest.raises(RequestError, match="prompt_embeds"):
        read_base64(b64encode(HOSTILE[name]).decode())


def test_a_stride_of_one_row_may_be_any() -> None:
    tensor = torch.arange(12.0).as_strided((1, 4, 3), (2**62, 1, 4))
    read = read_base64(b64encode(torch_file(tensor)).decode())
    assert np.array_equal(read, np.arange(12.0).reshape(3, 4).T[None])


@pytest.mark.parametrize("version", [b"\1\0", b"\2\0"])
def test_a_numpy_file(version: bytes) -> None:
    for order, array in {"False": ROWS, "True": np.asfortranarray(ROWS)}.items():
        header = f"{{'descr': '>f8', 'fortran_order': {order}, 'shape': (3, 4), }}     \n"
        file = numpy_file(header, array.astype(">f8").tobytes("A"), version)
        read = read_base64(b64encode(file).decode())
        assert np.array_equal(read, np.load(io.BytesIO(file)))
        assert np.array_equal(read, ROWS)


WHOLE = [of_shape("(3, 4)", ROWS.tobytes()), torch_file(torch.from_numpy(ROWS)), safetensors_file([0, 4])]


# Of Python's own reader of pickles, about texts with a backslash.
@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
@settings(max_examples=600, deadline=None)
@given(st.sampled_from(WHOLE), st.lists(st.tuples(st.integers(0, 2**31), st.binary(max_size=4)), max_size=3))
@example(WHOLE[0], [])
def test_changed_files(file: bytes, changes: list[tuple[int, bytes]]) -> None:
    """Whatever is in a file, it is an array or an error of the request."""
    for place, new in changes:
        begin = place % len(file)
        file = file[:begin] + new + file[begin + len(new) :]
    try:
        read = read_base64(b64encode(file).decode())
    except RequestError:
        return
    assert read.nbytes <= len(file)
    read.sum()
