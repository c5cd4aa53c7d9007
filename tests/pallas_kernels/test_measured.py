"""The next process takes the measured choices: of this chip, these libraries and these kernels alone."""

from importlib import metadata
from pathlib import Path

import pytest

from jaxllm.pallas_kernels import measured
from jaxllm.pallas_kernels.measured import measured_blocks, measured_digest, measured_folder, store_measured
from jaxllm.pallas_kernels.tuning import find_blocks
from tests.conftest import RunPython

KEY: dict[str, int | str] = {
    "kernel": "decode",
    "head_size": 128,
    "num_kv_heads": 8,
    "group": 4,
    "page_size": 64,
    "q_dtype": "bfloat16",
    "kv_dtype": "bfloat16",
}
BLOCKS = {"keys": 2048, "chunk": 1024, "slots": 2, "queries": 1, "heads": 8}
V6E, OTHER = "TPU v6 lite", "TPU v5 lite"


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def keep(kind: str = V6E, **changes: int) -> None:
    store_measured("paged_attention", kind, {"key": KEY, "blocks": {**BLOCKS, **changes}, "microseconds": 12.5})


def test_what_was_measured_comes_first() -> None:
    shipped = find_blocks("paged_attention", "v6e", KEY, V6E)
    assert shipped != BLOCKS
    assert find_blocks("paged_attention", "none", KEY, V6E) is None
    keep()
    assert find_blocks("paged_attention", "v6e", dict(reversed(KEY.items())), V6E) == BLOCKS
    assert find_blocks("paged_attention", "none", KEY, V6E) == BLOCKS
    assert find_blocks("paged_attention", "v6e", KEY) == shipped
    assert find_blocks("paged_attention", "v6e", {**KEY, "page_size": 48}, V6E) is None


def test_an_entry_takes_the_place_of_one_with_its_key() -> None:
    keep()
    store_measured("paged_attention", V6E, {"key": {**KEY, "kernel": "prefill"}, "blocks": BLOCKS})
    keep(slots=4)
    found = measured_blocks("paged_attention", V6E)
    assert len(found) == 2
    assert find_blocks("paged_attention", None, KEY, V6E) == {**BLOCKS, "slots": 4}


def test_another_chip_library_or_kernel_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    keep()
    assert not measured_blocks("paged_attention", OTHER)
    assert not measured_blocks("linear", V6E)
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "0.99.0" if name == "jaxlib" else version(name))
    measured._read.cache_clear()
    assert not measured_blocks("paged_attention", V6E)
    monkeypatch.undo()


def test_a_broken_file_is_nothing() -> None:
    keep()
    (file,) = measured_folder().glob("*.json")
    file.write_bytes(file.read_bytes()[:-2])
    measured._read.cache_clear()
    assert not measured_blocks("paged_attention", V6E)


def test_a_process_reads_it_once(tmp_path: Path) -> None:
    """An engine that compiles its steps gets one answer, whoever tunes meanwhile."""
    keep()
    (file,) = measured_folder().glob("*.json")
    file.rename(tmp_path / "elsewhere")
    assert not measured_blocks("paged_attention", V6E)
    (tmp_path / "elsewhere").rename(file)
    assert not measured_blocks("paged_attention", V6E)


def test_the_digest_says_whether_anything_changed() -> None:
    assert measured_digest() is None
    keep()
    first = measured_digest()
    assert first is not None
    keep(slots=4)
    assert measured_digest() not in (None, first)


def test_the_next_process_takes_it(tmp_path: Path, run_python: RunPython) -> None:
    """On a CPU, where kernels run in an interpreter."""
    keep("cpu")
    code = (
        "from jaxllm.pallas_kernels.paged_attention.tpu.blocks import choose_blocks, target;"
        "from jaxllm.pallas_kernels.paged_attention.tpu.layout import Dims;"
        "blocks = choose_blocks('decode', Dims(8, 4, 128, 64, 'bfloat16', 'bfloat16'), 64, target());"
        "print(blocks.keys, blocks.slots)"
    )
    before = run_python("-c", code, env={"XDG_CACHE_HOME": str(tmp_path / "empty")})
    result = run_python("-c", code)
    assert result.stdout.split() == [str(BLOCKS["keys"]), str(BLOCKS["slots"])], result.stderr
    assert before.stdout.split() != result.stdout.split()
