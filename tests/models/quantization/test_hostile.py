"""Whatever a stranger writes into a checkpoint is read, or is an error that says where, in little time and memory."""

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.safetensors_file import read_header
from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.registry import read_format
from tests.models.quantization.formats import FORMATS
from tests.models.quantization.test_formats import MODULE, SHAPE, weight, written

NAMES = (
    "int8 per tensor, static",
    "int8 asymmetric",
    "float8 in blocks",
    "W4A16 asymmetric",
    "W4A16 reordered",
    "AWQ",
    "GPTQ asymmetric",
    "GPTQ desc_act",
    "fp8 in blocks",
    "fp8 static",
    "NVFP4",
    "NVFP4 of modelopt",
    "float8 of fbgemm",
)
VALUES: list[Any] = [
    None, True, 0, -1, 1, 3, 7, 8, 16, 10**12, 10**400, -1.5, float("nan"), float("inf"), "", "8", "x" * 3000,
    "re:(a+)+b", "re:(", "tensor", "channel", "group", "block", "int", "float", "static", "local", [], [[]], [0, 0],
    [10**30, 1], ["re:(a|a)*$"], {}, {"a": 1}, "I8", "U8", "I32", "I64", "F64", "BF16", "F8_E4M3", "F8_E8M0", "F4",
]  # fmt: skip
MOST_MEMORY = 16 * 2**20
QUICKLY = settings(
    max_examples=120,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
REMOVE = object()
NUMBERS = st.integers(0, 10**6)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of all that is in a JSON value, itself included."""
    yield at
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from places(inner, (*at, key))


def changed(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    """The value with another one at a place, or none."""
    if not at:
        return {} if new is REMOVE else new
    copy = value.copy()
    if new is REMOVE and len(at) == 1:
        del copy[at[0]]
    else:
        copy[at[0]] = changed(copy[at[0]], at[1:], new)
    return copy


def drawn(value: Any, place: int, new: int) -> tuple[tuple[Any, ...], Any]:
    """A place in a JSON value, and what comes there."""
    every, news = list(places(value)), [REMOVE, *VALUES]
    return every[place % len(every)], news[new % len(news)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file for each of `NAMES`."""
    folder = tmp_path_factory.mktemp("files")
    for name in NAMES:
        written(folder, FORMATS[name].make(weight(*SHAPE)).tensors)
        (folder / "model.safetensors").rename(folder / name)
    return folder


def attempt(folder: Path, section: Any, content: bytes) -> None:
    """Read the matrix; an error must name the file, the field or the tensor."""
    path = folder / "model.safetensors"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        found = ConfigFile({"quantization_config": section}).section("quantization_config")
        if found is None:
            return
        form = read_format(found)
        tensors = {tensor.name: tensor for tensor in read_header(path)}
        for matrix in form.matrices(tensors, [f"{MODULE}.weight"]).values():
            read = matrix.read()
            assert read.values.shape == read.kind.values_shape(read.shape)
            assert np.isfinite(read.scales.astype(np.float32)).all()
    except ModelError as error:
        assert any(where in str(error) for where in ("config.json", str(path), MODULE)), error  # noqa: PT017
        assert len(str(error)) < 2500  # noqa: PT017 - others are none of ours, and fail the test
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < MOST_MEMORY


@QUICKLY
@given(st.sampled_from(NAMES), NUMBERS, NUMBERS)
def test_any_configuration(tmp_path: Path, files: Path, name: str, place: int, value: int) -> None:
    section = FORMATS[name].section
    attempt(tmp_path, changed(section, *drawn(section, place, value)), (files / name).read_bytes())


@QUICKLY
@given(st.sampled_from(NAMES), NUMBERS, NUMBERS)
def test_any_header(tmp_path: Path, files: Path, name: str, place: int, value: int) -> None:
    content = (files / name).read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    text = json.dumps(changed(header, *drawn(header, place, value))).encode()
    attempt(tmp_path, FORMATS[name].section, len(text).to_bytes(8, "little") + text + content[8 + size :])


@QUICKLY
@given(
    st.sampled_from(NAMES),
    st.integers(0, 10**6),
    st.sampled_from([0, 0x7F, 0x80, 0xFF]),
    st.sampled_from([1, 4, 10**6]),
)
@example("fp8 static", 0, 0xFF, 10**6)
def test_any_bytes(tmp_path: Path, files: Path, name: str, start: int, value: int, count: int) -> None:
    content = bytearray((files / name).read_bytes())
    first = 8 + int.from_bytes(content[:8], "little")
    first += start % (len(content) - first)
    content[first : first + count] = bytes([value]) * len(content[first : first + count])
    attempt(tmp_path, FORMATS[name].section, bytes(content))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({**FORMATS["GPTQ"].section, "group_size": 10**12}, "'group_size' must be at most 65536"),
        ({**FORMATS["AWQ"].section, "group_size": 10**12}, "'group_size' must be at most 65536"),
        (
            {**FORMATS["fp8 in blocks"].section, "weight_block_size": [1, 10**12]},
            "'weight_block_size' must be two p",
        ),
        ({**FORMATS["GPTQ"].section, "group_size": "128"}, "'group_size' must be an integer"),
        ({**FORMATS["GPTQ"].section, "damp_percent": 10**400, "bits": 10**400}, "'bits' must be 4 or 8"),
    ],
)
def test_absurd_sizes(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read_format(ConfigFile(section))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": {"dtype": "F32", "shape": ["2"], "data_offsets": [0, 8]}}', "bad entry for tensor 'a'"),
        (b'{"a": {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}}', "bad entry for tensor 'a'"),
        (b'{"a": {"dtype": "F32", "shape": [true], "data_offsets": [0, 4]}}', "bad entry for tensor 'a'"),
        (b'{"a": {"dtype": "I8", "shape": [-1], "data_offsets": [0, 4]}}', "bad entry for tensor 'a'"),
        (b'{"a": {"dtype": "I8", "shape": [4], "data_offsets": [-4, 0]}}', "bad entry for tensor 'a'"),
        (b'{"%s": {"dtype": "I8", "shape": [4], "data_offsets": [0, 4]}}' % (b"a" * 5000), "has 5000 characters"),
        (
            (
                b'{"a": {"dtype": "I8", "shape": [4], "data_offsets": [0, 4]}, "b": {"dtype": "I8", "shape": [4], '
                b'"data_offsets": [2, 6]}}'
            ),
            "tensor 'b' overlaps another",
        ),
        (b'{"a": {"dtype": "I8", "shape": [9999], "data_offsets": [0, 9999]}}', "tensor 'a' ends at byte"),
    ],
)
def test_headers_that_lie(tmp_path: Path, header: bytes, message: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(64))
    with pytest.raises(ModelError, match=message):
        read_header(path)


def test_a_number_that_no_float_holds() -> None:
    with pytest.raises(ModelError, match="'rms_norm_eps' must be a finite number"):
        ConfigFile({"rms_norm_eps": 10**400}).number("rms_norm_eps")
    with pytest.raises(ModelError, match="'factors' must be a list of finite numbers"):
        ConfigFile({"factors": [1.0, 10**400]}).numbers("factors")
