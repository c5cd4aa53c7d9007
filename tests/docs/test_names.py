"""Paths, flags and commands that the pages name exist."""

import re
from functools import cache
from importlib import import_module
from pathlib import Path, PurePosixPath
from subprocess import run

import pytest

from jaxllm.flags import FlagParser
from jaxllm.serving.cli.main import COMMANDS, Entry
from tests.conftest import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED = {"docs/flags.md"}
NOT_OURS = {
    "docs/_build/html",  # built
    "benchmarks/NAME.py",
    "hosted_vllm/",  # a prefix of LiteLLM's
    "my_server.py",
    "my_formats.py",
    "./vicuna",
    "FOLDER/NAME",  # of an adapter, as are the next three
    "team/sql",
    "./sql",
    "organization/name/folder",
    "llm-d.ai/role",  # a label
}
"""Paths in pages that are not in the repository."""
FILES_OF_OTHERS = re.compile(
    r"/?(summary|doctor|doctor_8b|modules|sentence_bert_config|config_sentence_transformers|manifest|sharded_state|"
    r"openapi|config|adapter_config|preprocessor_config|processor_config|generation_config|tokenizer|quantize_config|layout|weights)\.json|1_Pooling/config\.json"
)
"""Files of checkpoints, reports, servers and caches."""
FOREIGN_FLAGS = {
    *("--plot-timeline", "--async-engine"),  # of vLLM's benchmark, named as missing
    *("--zone", "--accelerator-type"),  # of gcloud
    "--to",  # of jupytext
    *("--jax", "--linker--"),  # in a drawing
}
"""Flags in pages that no parser of ours knows; pages of deployment name many of other tools."""


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def suffixes() -> frozenset[str]:
    """Every end of the path of a file or folder in the repository."""
    listed = run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    found = set[str]()
    for file in listed:
        for path in (PurePosixPath(file), *PurePosixPath(file).parents):
            parts = path.parts
            found.update("/".join(parts[start:]) for start in range(len(parts)))
    return frozenset(found)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_exist(page: Path) -> None:
    missing = []
    for code in re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")):
        path = code.strip()
        if not re.fullmatch(r"[\w./-]+\.(?:py|md|toml|json|yaml|jinja)|(?:[\w.-]+/)+[\w-]*", path):
            continue
        if path in NOT_OURS or FILES_OF_OTHERS.fullmatch(path) or path.startswith(("http", "/")):
            continue
        end = path.rstrip("/")
        if end not in suffixes() and end.removeprefix("jaxllm/") not in suffixes():
            missing.append(path)
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_scripts_and_benchmarks_exist(page: Path) -> None:
    text = " ".join(page.read_text(encoding="utf-8").split())
    for script in re.findall(r"\bscripts/(\w+)", text):
        assert (ROOT / "scripts" / script).exists() or (ROOT / "scripts" / f"{script}.py").exists(), script
    for benchmark in re.findall(r"scripts/bench ([a-z]\w+)", text):
        assert (ROOT / "benchmarks" / f"{benchmark}.py").exists(), benchmark


def parsers(commands: dict[str, Entry], before: str = "") -> dict[str, FlagParser]:
    """The parser of every sub-command by its full name."""
    found = {}
    for name, entry in commands.items():
        if entry.commands:
            found.update(parsers(dict(entry.commands), f"{before}{name} "))
        else:
            parser = FlagParser(prog=name)
            import_module(entry.module).add_arguments(parser)
            found[f"{before}{name}"] = parser
    return found


PARSERS = parsers(dict(COMMANDS))


def flags_in(text: str) -> list[str]:
    """Long flags, in the form in which parsers know them."""
    return [flag.partition(".")[0] for flag in re.findall(r"(?<![\w-])(--[a-z][\w.-]*\w)", text)]


@cache
def flags_of_scripts() -> frozenset[str]:
    """Flags in our scripts and benchmarks, and options of vLLM that are accepted."""
    texts = [(ROOT / "docs" / "flags.md").read_text(encoding="utf-8")]
    for folder in ("scripts", "benchmarks", "serving", "jaxllm", "pallas_kernels", "docs/examples", "tests"):
        texts += [path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob("*.py")]
    shell = [path for path in (ROOT / "scripts").iterdir() if path.is_file() and not path.suffix]
    texts += [path.read_text(encoding="utf-8") for path in shell]
    return frozenset(flag for text in texts for flag in flags_in(text))


@pytest.mark.parametrize(
    "page", [page for page in PAGES if name_of(page) not in GENERATED and "deploy" not in page.parts], ids=name_of
)
def test_flags_are_known(page: Path) -> None:
    known = {flag for parser in PARSERS.values() for flag in parser._option_string_actions} | flags_of_scripts()
    assert set(flags_in(page.read_text(encoding="utf-8"))) - known - FOREIGN_FLAGS == set()


def commands_in(page: Path) -> list[str]:
    """Lines of programs that run `jaxllm`, each joined with those that continue it."""
    blocks = re.findall(
        r"^ *```[a-z]*\n(.*?)^ *```|((?:^    .*\n)+)", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    joined = "\n".join(fenced or indented for fenced, indented in blocks).replace("\\\n", " ")
    found = []
    for line in joined.splitlines():
        command = line.partition(" #")[0].strip()
        command = re.sub(r"^(?:sudo |[A-Z_]+=\S+ )+", "", command)
        if command.startswith("jaxllm "):
            found.append(command)
    return found


COMMAND_LINES = [(page, command) for page in PAGES for command in commands_in(page)]


def test_pages_have_commands() -> None:
    assert len(COMMAND_LINES) > 50


@pytest.mark.parametrize(("page", "command"), COMMAND_LINES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_command_has_a_sub_command_and_its_flags(page: Path, command: str) -> None:
    words = command.removeprefix("jaxllm ").split()
    longest = next((n for n in (3, 2, 1) if " ".join(words[:n]) in PARSERS), 0)
    assert longest, f"{name_of(page)}: no such sub-command"
    known = PARSERS[" ".join(words[:longest])]._option_string_actions
    outside_quotes = re.sub(r"'[^']*'|\"[^\"]*\"", "", command)
    unknown = [flag for flag in flags_in(outside_quotes) if flag not in known]
    assert not unknown, name_of(page)


UNSERVED = {"/v1/conversations", "/v1/responses/compact"}
"""Routes that pages name as missing."""
WRONG = {"/v1/v1/models", "/chat/completions", "/v1/models/", "/v1"}
"""Paths that show how a mistake is answered, and the prefix."""
BY_FASTAPI = {"/docs", "/openapi.json"}


@cache
def routes() -> frozenset[str]:
    """Paths in the source of the server, with `{}` for a parameter; aliases under /v1 and /v2 leave that out."""
    literals = [
        path
        for source in (ROOT / "serving").rglob("*.py")
        for path in re.findall(r'"(/[\w./{}:]*)"', source.read_text(encoding="utf-8"))
    ]
    return frozenset(re.sub(r"\{\w+(?::path)?\}", "{}", path) for path in literals)


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name == "docs"], ids=name_of)
def test_routes_are_served(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:(?:GET|POST|DELETE) )?(/(?:[\w{}.-]+/?)+)`", text))
    for path in named - WRONG - UNSERVED - BY_FASTAPI:
        plain = re.sub(r"\{\w+\}", "{}", path)
        assert plain in routes() or re.sub(r"^/v[12]", "", plain) in routes(), path
