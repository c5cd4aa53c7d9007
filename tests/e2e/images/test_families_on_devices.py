"""Families that see, on several devices: answers are those of transformers, and an image is encoded once."""

import json
from pathlib import Path

import pytest

from tests.conftest import RunPython
from tests.e2e.images.answer_on_devices import TEXT
from tests.e2e.images.test_families import CASES, Saved

NAMES = [name for name, case in CASES.items() if case.has_answers]


# CI has Idefics 3 in `test_engine_images.py`.
@pytest.mark.exhaustive
@pytest.mark.parametrize("name", NAMES)
def test_two_devices(name: str, tmp_path: Path, demo_folder: Path, run_python: RunPython) -> None:
    """Tensor parallel and data parallel; of 100 images ten are distinct."""
    case = CASES[name]
    saved = Saved(case, tmp_path, demo_folder)
    options = {
        "max_model_len": 256, "max_num_seqs": 4, "max_num_batched_tokens": 64, "optimization_level": 0,
        "enforce_eager": True, "media_pool_tokens": 2048, **case.engine,
    }  # fmt: skip
    given = json.dumps([case.marker, case.sizes, options])
    script = str(Path(__file__).with_name("answer_on_devices.py"))
    done = run_python(
        script, str(tmp_path), given, "model=2", "data=2", env={"PYTHONPATH": "."}, devices=2, timeout=900
    )
    assert done.returncode == 0, done.stderr
    wanted = [list(saved.answer(TEXT.format(case.marker), [image])) for image in saved.images()]
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        answers, counts = json.loads(line)
        assert answers == wanted
        assert counts == [100, 90]
