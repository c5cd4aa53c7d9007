"""The Dockerfiles: what they promise, and that what they pin is what the package asks for."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from jaxllm.serving.deploy.container import CACHE, USER
from jaxllm.serving.deploy.installation import PORT
from jaxllm.serving.deploy.ray_service import RAY_VERSION
from tests.conftest import ROOT

IMAGES = ROOT / "docs" / "deploy" / "images"
PLATFORMS = ("cpu", "tpu", "cuda")


def instructions(platform: str) -> list[tuple[str, str]]:
    """Each instruction and what follows it, its lines joined."""
    text = re.sub(r"\\\n\s*", "", (IMAGES / f"Dockerfile.{platform}").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def pinned(file: str) -> dict[str, str]:
    """Versions by name; every one has a hash."""
    found = {}
    for entry in re.split(r"\n(?=\S)", (IMAGES / file).read_text().strip()):
        name, version = re.match(r"([\w.-]+)==([^\s;]+)", entry).groups()  # type: ignore[union-attr]
        assert "--hash=sha256:" in entry, name
        found[name.lower().replace("_", "-")] = version
    return found


@pytest.mark.parametrize("platform", PLATFORMS)
def test_what_an_image_promises(platform: str) -> None:
    found = instructions(platform)
    (base,) = [rest for word, rest in found if word == "ARG" and rest.startswith("BASE=")]
    assert re.fullmatch(r"BASE=docker\.io/library/python:[\w.-]+-slim-[a-z]+@sha256:[0-9a-f]{64}", base)
    assert {rest for word, rest in found if word == "FROM"} == {"${BASE} AS build", "${BASE}"}
    last = found[[word for word, _ in found].index("FROM") + 1 :]
    last = last[[word for word, _ in last].index("FROM") :]
    assert ("USER", f"{USER}:{USER}") in last
    assert ("EXPOSE", str(PORT)) in last
    assert ("ENTRYPOINT", '["jaxllm"]') in last
    assert any(word == "HEALTHCHECK" and f":{PORT}/health" in rest for word, rest in last)
    assert any(word == "ENV" and f"XDG_CACHE_HOME={CACHE}" in rest for word, rest in last)
    assert any(word == "RUN" and "! command -v cc gcc" in rest for word, rest in last)
    for word, rest in found:
        if word == "COPY" and not rest.startswith("--from"):
            *sources, _ = rest.split()
            assert all(
                (ROOT / each.replace("${REQUIREMENTS}", f"requirements-{platform}.txt")).exists() for each in sources
            )


@pytest.mark.parametrize("file", sorted(each.name for each in IMAGES.glob("requirements-*.txt")))
def test_wheels_are_what_the_package_asks_for(file: str) -> None:
    if file == "requirements-build.txt":
        assert "setuptools" in pinned(file)
        return
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    _, platform, *others = Path(file).stem.split("-")
    extras = [each for each in (platform, *others) if each != "cpu"]
    wanted = [*project["dependencies"], *(line for each in extras for line in project["optional-dependencies"][each])]
    found = pinned(file)
    for requirement in map(Requirement, wanted):
        if requirement.marker is None or requirement.marker.evaluate():
            version = found[requirement.name.lower().replace("_", "-")]
            assert requirement.specifier.contains(version), f"{requirement}: {file} has {version}"
    assert not others or found["ray"] == RAY_VERSION
    assert ("libtpu" in found) == (platform == "tpu")
