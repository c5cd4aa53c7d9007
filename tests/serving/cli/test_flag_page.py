from pathlib import Path

import pytest

from jaxllm.serving.cli import flag_page

ROOT = Path(__file__).resolve().parents[3]


def test_page_is_current() -> None:
    assert flag_page.main(["--check", str(ROOT / "docs" / "flags.md")]) == 0


def test_check_notices_a_stale_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "flags.md"
    assert flag_page.main(["--check", str(file)]) == 1
    assert flag_page.main([str(file)]) == 0
    assert flag_page.main(["--check", str(file)]) == 0
    file.write_text(file.read_text() + "more\n")
    assert flag_page.main(["--check", str(file)]) == 1
    assert "out of date" in capsys.readouterr().err
