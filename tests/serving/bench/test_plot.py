from pathlib import Path

import pytest

from jaxllm.errors import ConfigError
from jaxllm.serving.bench.client import Answer
from jaxllm.serving.bench.plot import write_plot

GOOD = Answer(start=5.0, ttft=0.1, itls=[0.2, 0.3], latency=0.6, output_tokens=3, text="abc")
BAD = Answer(start=5.0, error="status 500")


@pytest.mark.parametrize("answers", [[GOOD, GOOD, BAD], [GOOD], [BAD]])
def test_a_picture_is_written(answers: list[Answer], tmp_path: Path) -> None:
    file = tmp_path / "plot.png"
    write_plot(file, answers, "title")
    assert file.read_bytes().startswith(b"\x89PNG")


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot write --plot"):
        write_plot(tmp_path / "absent" / "plot.png", [GOOD], "title")
