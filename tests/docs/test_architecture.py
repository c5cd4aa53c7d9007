"""docs/architecture.md names folders that exist, in their order, and says how errors end."""

import re
import tomllib

import pytest

import jaxllm.errors
from jaxllm.serving.cli import main as command_line
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SECTIONS = {"jaxllm": "jaxllm/", "models": "models/", "pallas_kernels": "pallas_kernels/"}


def section(name: str) -> str:
    return PAGE.split(f"\n## {name}")[1].split("\n## ")[0]


def drawing(number: int) -> str:
    return PAGE.split("```svgbob\n")[number + 1].split("```")[0]


@pytest.mark.parametrize("folder", SECTIONS)
def test_what_a_table_lists_exists(folder: str) -> None:
    listed = re.findall(r"^\| ([^|]+) \|", section(SECTIONS[folder]), re.MULTILINE)
    paths = [path for cell in listed for path in re.findall(r"`([\w./]+)`", cell) if "." in path or "/" in path]
    if folder != "pallas_kernels":
        assert len(paths) > 5
    assert [path for path in paths if not (ROOT / folder / path).exists()] == []


def test_every_folder_of_the_layers_is_drawn_and_exists() -> None:
    boxes = dict(
        re.findall(r'"(\w+)/" [^\n]*\n[ v|]*\+-+\+\n((?: \|.*\|\n)+)', drawing(0).replace("v\n", "\n"))
    )  # title, then lines of the box
    assert list(boxes) == ["serving", "jaxllm", "models", "pallas_kernels"]
    for layer, box in boxes.items():
        for name in re.findall(r"[a-z_]+", box):
            assert (ROOT / layer / name).is_dir(), f"{layer}/{name}"
    operations = {each.parent.name for each in (ROOT / "pallas_kernels").glob("*/__init__.py")}
    assert operations - set(re.findall(r"[a-z_]+", boxes["pallas_kernels"])) == set()


def test_the_chain_of_serving_is_that_of_the_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (chain,) = (each["layers"] for each in contracts["contracts"] if each.get("containers") == ["jaxllm.serving"])
    box = drawing(0).split('"serving/"')[1].split('"jaxllm/"')[0]
    assert re.findall(r"[a-z_]+", box.split("\n", 2)[2]) == chain


ROWS = re.findall(r"^\| `(\w+Error)` \| [^|]+ \| (\d) \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("name", "code"), ROWS)
def test_an_error_ends_the_command_as_the_page_says(name: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: list[str]) -> int:
        raise getattr(jaxllm.errors, name)("as the page says")

    monkeypatch.setattr(command_line, "_dispatch", fail)
    assert command_line.main([]) == int(code)


def test_the_table_of_errors_has_the_base_classes() -> None:
    direct = {
        each.__name__ for each in jaxllm.errors.JaxLLMError.__subclasses__() if each.__module__ == "jaxllm.errors"
    }
    assert direct - {name for name, _ in ROWS} == {"QuotaError"}  # only for the server: 429


def test_only_http_errors_turns_exceptions_into_statuses() -> None:
    """Routes may raise an `HttpError` of their own, but no other module maps errors of the engine to one."""
    mapping = re.compile(
        r"except [^:\n]*Error[^:\n]*:\n\s+raise HttpError\(|case \w+Error\([^\n]*\):\n\s+return HttpError\("
    )
    sources = {path: path.read_text(encoding="utf-8") for path in (ROOT / "serving").rglob("*.py")}
    mapped = {path.relative_to(ROOT).as_posix() for path, text in sources.items() if mapping.search(text)}
    assert mapped == {"serving/http/errors.py"}
    below = [path for folder in ("jaxllm", "models", "pallas_kernels") for path in (ROOT / folder).rglob("*.py")]
    assert [path for path in below if "status_code" in path.read_text(encoding="utf-8")] == []
