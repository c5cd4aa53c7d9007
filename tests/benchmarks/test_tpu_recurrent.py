"""Recurrences are compiled for an absent TPU, and copy no array of all states."""

import os
import subprocess
import sys

import pytest

from benchmarks.tpu_recurrent import KERNELS, copies_of_states, least_bytes
from tests.thinned import thinned


@pytest.mark.slow
def test_decodes_update_states_in_place() -> None:
    kernels = thinned(["selective_scan"], ["gated_delta"])
    command = [sys.executable, "-m", "benchmarks.tpu_recurrent", "--tokens", "64", "--kernel", *kernels]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [[part.strip() for part in line.split("|")[1:-1]] for line in done.stdout.splitlines()[2:]]
    assert [line[-1] for line in lines] == ["0"] * len(kernels)
    assert all(float(line[2]) > float(line[3]) > 0 for line in lines)


def test_copies_are_seen() -> None:
    kernel = KERNELS["selective_scan"]
    copy = "  %copy.1 = f32[2,128,16,8192]{3,2,1,0:T(8,128)} copy(%p)\n"
    other = "  %copy.2 = f32[1,128,16,8192]{3,2,1,0:T(8,128)} copy(%q)\n"
    assert copies_of_states(copy + other, kernel) == 1


def test_the_fewest_bytes_are_those_of_states_and_tokens() -> None:
    of_token = 4 * 8192 + 4 * 8192 + 2 * 16 + 2 * 16 + 4 * 8192
    expected = 2 * 3 * 4 * 16 * 8192 + 5 * of_token + 4 * 8192 * 16
    assert least_bytes(KERNELS["selective_scan"], 5, 3) == expected
