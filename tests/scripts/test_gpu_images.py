"""What is kept of towers and steps that are compiled for a described GPU, and the table of it."""

import os
from pathlib import Path

import pytest

from benchmarks import models
from jaxllm.executor.compile.buckets import Bucket
from jaxllm.planning.memory import CompiledProgram
from scripts.gpu_images import engine_options, last_thunks, program_figures, step_buckets
from tests.scripts.test_gpu_steps import OUTSIDE


def test_a_prompt_has_the_tokens_of_an_image() -> None:
    assert step_buckets(1369) == [Bucket(64, 64), Bucket(2048, 64)]
    assert step_buckets(256)[1] == Bucket(256, 64)


def test_options_are_those_of_the_plans(tmp_path: Path) -> None:
    """Images of any size have as many patches as where the same models are planned for TPUs."""
    options = engine_options(models.FOLDER / "Qwen2.5-VL-7B-Instruct.json", tmp_path)
    assert options["max_image_patches"] == 5476
    assert options["max_model_len"] == models.LONGEST
    assert (tmp_path / "config.json").exists()


def test_the_last_list_of_thunks_counts(tmp_path: Path) -> None:
    for number, text in enumerate(("", OUTSIDE)):
        path = tmp_path / f"module_{number}.jit_encode.thunk_sequence_after_thunk_passes.txt"
        path.write_text(text)

        os.utime(path, ns=(number, number))
    found = program_figures(CompiledProgram(1.26, 2**30, 5), last_thunks(tmp_path))
    assert found["compile_seconds"] == pytest.approx(1.3)
    assert (found["temporaries"], found["waits"], found["kernels"]) == (2**30, 2, 2)


def test_rows_of_the_table() -> None:
    counts = {"from_host": 3, "waits": 0, "kernels": 1700, "in_loops": 0, "temporaries": 2**29, "compile_seconds": 9.6}
    steps = [
        {"tokens": 64, "rows": 64, "roofline": 0.00752} | counts,
        {"tokens": 2048, "rows": 64, "roofline": 0.0332} | counts,
    ]
    plan = {"weights": 15 * 2**30, "image": {"patches": 5476, "rows": 1369} | counts, "steps": steps}
    assert models.gpu_table({"a/b": plan}).splitlines()[-3:] == [
        "| a/b | 15.0 | an image of 5,476 patches | 10 | 0.50 | 1,700 | 3 | 0 |  |",
        "| a/b | 15.0 | 64 decodes | 10 | 0.50 | 1,700 | 3 | 0 | 7.5 |",
        "| a/b | 15.0 | a prompt of 2,048 | 10 | 0.50 | 1,700 | 3 | 0 | 33.2 |",
    ]
