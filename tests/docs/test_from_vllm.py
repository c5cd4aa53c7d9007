"""docs/from-vllm.md says what the code says."""

import pkgutil
import re
from importlib import import_module

import jaxllm.compat.vllm.modules as names
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.llm import foreign_arguments
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "from-vllm.md").read_text(encoding="utf-8")


def rows() -> dict[str, list[str]]:
    """The names in the page's tables, by what is in the first column: of one row or several."""
    found: dict[str, list[str]] = {}
    for line in PAGE.splitlines():
        if line.startswith("| `"):
            first, second, *_ = line.strip("| ").split(" | ")
            listed = found.setdefault(first.strip("`"), [])
            listed.extend(name.strip("`") for name in second.split(", "))
    return found


def test_every_module_and_its_names_are_listed() -> None:
    prefix = names.__name__ + "."
    listed = rows()
    for each in pkgutil.walk_packages(names.__path__, prefix):
        exported = getattr(import_module(each.name), "__all__", ())
        if exported:
            assert listed[f"jaxllm.{each.name.removeprefix(prefix)}"] == list(exported)


def listed_of(what: str) -> list[str]:
    """The names of one item of the page's lists."""
    item = PAGE.split(f"\n- {what}: ")[1].split("\n-")[0].split("\n\n")[0]
    return re.findall("`([^`]+)`", item)


def test_names_that_ask_for_nothing_are_listed() -> None:
    assert listed_of("`SamplingParams`") == sorted(type(SamplingParams).neutral)
    assert listed_of("methods") == list(foreign_arguments.REASONS)
