"""A manifest is read with care: anybody may have written its folder."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from jaxllm.bundle.manifest import FILE, read_file, read_manifest
from jaxllm.errors import ConfigError

DATA = b"machine code"


def manifest(**changes: Any) -> dict[str, Any]:
    array = {"dtype": "int32", "shape": [8], "split": None}
    call = {"name": "jit(f)", "kept": [0], "inputs": [array], "outputs": [array], "committed": False}
    saved = {"file": "step_8.bin", "size": len(DATA), "sha256": "0" * 64, "call": call}
    plain = {"format": "jaxllm executables", "version": 1, "engine": {}, "num_pages": 9, "temporary_bytes": 0}
    return {**plain, "executables": {"step_8": saved}, **changes}


def write(folder: Path, content: Any) -> Path:
    (folder / FILE).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def with_file(name: str) -> dict[str, Any]:
    found = manifest()
    found["executables"]["step_8"]["file"] = name
    return found


def test_a_manifest_is_read(tmp_path: Path) -> None:
    found = read_manifest(write(tmp_path, manifest()))
    assert found.num_pages == 9
    assert found.executables["step_8"].call.kept == [0]


def test_each_stage_has_its_part(tmp_path: Path) -> None:
    saved = manifest()["executables"]["step_8"]
    names = ["stage_0_step_8", "stage_1_step_8", "stage_1_set_pages", "step_8", "set_row"]
    stages = [{"stage": 0}, {"stage": 1}]
    content = manifest(executables=dict.fromkeys(names, saved), engine={"stage": 2}, stages=stages)
    whole = read_manifest(write(tmp_path, content))
    parts = [whole.of_stage(number, 3) for number in range(3)]
    assert [part.engine for part in parts] == [{"stage": 0}, {"stage": 1}, {"stage": 2}]
    assert [sorted(part.executables) for part in parts] == [["step_8"], ["set_pages", "step_8"], ["set_row", "step_8"]]
    assert whole.of_stage(0, 1) is whole.of_stage(1, 2) is whole, "whose identity tells how many there are"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "invalid: Input data was truncated"),
        ("{", "invalid: "),
        ("[]", "invalid: Expected `object`, got `array`"),
        ("[" * 100_000, "invalid: "),
        ("\x00\x01", "invalid: "),
        ({}, "invalid: Object missing required field `format`"),
        ({"format": "zip", "version": 1}, "not a bundle of executables: its format is 'zip'"),
        ({"format": "jaxllm executables", "version": 2}, "format version 2, but this jaxllm reads version 1"),
        (manifest(num_pages=-1), "invalid: Expected `int` >= 2"),
        (manifest(num_pages="9"), "invalid: Expected `int`, got `str`"),
        (manifest(surprise=1), "invalid: Object contains unknown field `surprise`"),
        (with_file("/etc/passwd"), "invalid file name '/etc/passwd'"),
        (with_file("../step_8.bin"), "invalid file name '../step_8.bin'"),
        (with_file("a/step_8.bin"), "invalid file name"),
        (with_file("step_8.bin\n"), "invalid file name"),
        (with_file(".."), "invalid file name"),
        (with_file("manifest.json"), "invalid file name"),
    ],
    ids=lambda value: None if isinstance(value, dict) or len(value) > 40 else value or "empty",
)
def test_a_bad_manifest_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_manifest(write(tmp_path, content))
    assert message in str(error.value)
    assert str(tmp_path / FILE) in str(error.value)


def test_a_folder_without_a_bundle(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        read_manifest(tmp_path / "missing")
    with pytest.raises(ConfigError, match=r"not a bundle of executables: it has no manifest\.json"):
        read_manifest(tmp_path)


def test_a_file_is_what_was_written(tmp_path: Path) -> None:
    content = manifest()
    content["executables"]["step_8"]["sha256"] = hashlib.sha256(DATA).hexdigest()
    saved = read_manifest(write(tmp_path, content)).executables["step_8"]
    file = tmp_path / "step_8.bin"
    with pytest.raises(ConfigError, match=r"step_8\.bin: missing"):
        read_file(tmp_path, saved)
    file.write_bytes(DATA)
    assert read_file(tmp_path, saved) == DATA
    file.write_bytes(DATA[:-1])
    with pytest.raises(ConfigError, match="corrupt: 11 bytes instead of 12"):
        read_file(tmp_path, saved)
    file.write_bytes(bytes([DATA[0] ^ 1]) + DATA[1:])
    with pytest.raises(ConfigError, match="its checksum is wrong"):
        read_file(tmp_path, saved)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(DATA)
    file.unlink()
    file.symlink_to(elsewhere)
    with pytest.raises(ConfigError, match="not a regular file"):
        read_file(tmp_path, saved)
