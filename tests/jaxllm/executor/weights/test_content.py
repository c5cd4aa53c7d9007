"""Files have the same digest only if they have the same bytes, wherever these differ."""

import hashlib
import os
from pathlib import Path

import pytest

from jaxllm.executor.weights import content
from jaxllm.executor.weights.content import content_digest


@pytest.mark.parametrize("size", [0, 1, 64, 65, 1000])
def test_every_byte_counts(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "_PIECE_BYTES", 64)
    monkeypatch.setattr(content, "_READ_BYTES", 16)
    data = bytes(number % 251 for number in range(size))
    file = tmp_path / "weights"
    file.write_bytes(data)
    digests = [hashlib.sha256(data[begin : begin + 64]).digest() for begin in range(0, size, 64)]
    whole = hashlib.sha256(b"".join(digests)).hexdigest()
    reports: list[tuple[str, int, int]] = []
    twice = content_digest([file, file], progress=lambda *report: reports.append(report))
    line = f"weights {whole}\n".encode()
    assert twice == hashlib.sha256(2 * line).hexdigest()
    assert content_digest([file]) == hashlib.sha256(line).hexdigest()
    ends = [min(begin + 64, size) for begin in range(0, size, 64)]
    assert reports == [("Hashing the checkpoint", before + end, 2 * size) for before in (0, size) for end in ends]
    found = {content_digest([file])}
    for place in range(0, size, 7):
        file.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        found.add(content_digest([file]))
    file.write_bytes(data + b"?")
    found.add(content_digest([file]))
    assert len(found) == len(range(0, size, 7)) + 2


def test_file_systems_may_give_less_than_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "weights"
    file.write_bytes(bytes(range(200)))
    whole, pread = content_digest([file]), os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, place: pread(descriptor, min(size, 7), place))
    assert content_digest([file]) == whole


@pytest.mark.parametrize("text", ["[" * 100_000 + "]" * 100_000, "[1]", "{", "\xff"])
def test_kept_digests_that_cannot_be_read_are_made_again(text: str, tmp_path: Path) -> None:
    file, kept = tmp_path / "weights", tmp_path / "kept.json"
    file.write_bytes(b"some")
    kept.write_text(text, "latin-1")
    assert content_digest([file], kept) == content_digest([file])
    assert kept.read_text().startswith("{")
