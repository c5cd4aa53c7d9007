"""Adapters found by the names that requests give: which names count, and what is remembered."""

import asyncio
from pathlib import Path

import huggingface_hub
import pytest

from jaxllm.errors import ConfigError, RequestError, RequestFaultError
from jaxllm.requests.lora_request import LoRARequest
from jaxllm.serving.http.adapter_resolver import FAILURE_SECONDS, MAX_FAILURES, AdapterResolver
from jaxllm.serving.http.adapters import ServedAdapters
from jaxllm.serving.options.server import ServerOptions, from_environment


class Engines:
    """Counts what is read; names that contain "broken" cannot be."""

    def __init__(self) -> None:
        self.read: list[str] = []

    async def add(self, adapter: LoRARequest) -> None:
        self.read.append(adapter.lora_name)
        await asyncio.sleep(0.01)
        if "broken" in adapter.lora_name:
            raise RequestError(f"adapter {adapter.lora_name!r}: no tensors", "lora_request")


def make_folder(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "adapter_config.json").write_text("{}")
    return root


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_only_names_below_the_folder_count(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "allowed", "sql", "team/chat")
    make_folder(tmp_path, "outside")
    (root / "plain").mkdir()
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "latest").symlink_to(root / "sql")
    served, engines = ServedAdapters(("demo",)), Engines()
    resolver = AdapterResolver(served, engines.add, folder=str(root))

    async def resolve() -> None:
        names = ("sql/", "./sql", "team/../sql", "../outside", "/", "", ".", str(root / "sql"), "link", "plain", "none")
        for name in (*names, "sql\0", "sql\\x", "x" * 300, "s*l"):
            await resolver.resolve(name)
            assert not served.names, name
        for name in ("demo", "sql", "team/chat", "latest", "sql"):
            await resolver.resolve(name)

    asyncio.run(resolve())
    assert served.names == engines.read == ["sql", "team/chat", "latest"]
    found = served.find("team/chat")
    assert found is not None
    assert found.lora_path == str(root / "team/chat")


def test_an_adapter_is_read_once_whoever_asks_and_whoever_leaves(tmp_path: Path) -> None:
    served, engines = ServedAdapters(("demo",)), Engines()
    resolver = AdapterResolver(served, engines.add, folder=str(make_folder(tmp_path, "sql")))

    async def resolve() -> None:
        first = asyncio.create_task(resolver.resolve("sql"))
        others = [asyncio.create_task(resolver.resolve("sql")) for _ in range(5)]
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(*others)

    asyncio.run(resolve())
    assert served.names == engines.read == ["sql"]


def test_failures_are_remembered_for_a_while(tmp_path: Path) -> None:
    served, engines, clock = ServedAdapters(("demo",)), Engines(), Clock()
    resolver = AdapterResolver(served, engines.add, folder=str(make_folder(tmp_path, "broken")), clock=clock)

    async def resolve() -> None:
        for _ in range(2):
            await resolver.resolve("later")
            with pytest.raises(RequestError, match="no tensors"):
                await resolver.resolve("broken")
        assert engines.read == ["broken"], "a broken one is not read again at once"
        make_folder(tmp_path, "later")
        await resolver.resolve("later")
        assert not served.names
        clock.now += FAILURE_SECONDS + 1
        await resolver.resolve("later")
        assert served.names == ["later"]
        for number in range(MAX_FAILURES + 50):
            await resolver.resolve(f"name-{number}")
        assert len(resolver._failures) == MAX_FAILURES
        assert not resolver._running

    asyncio.run(resolve())


def test_the_hub_is_asked_for_listed_repositories_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_folder(tmp_path, "sub/folder")
    (tmp_path / "adapter_config.json").write_text("{}")
    asked: list[tuple[str, list[str], bool]] = []

    def download(repository: str, *, allow_patterns: list[str], local_files_only: bool, **_: object) -> str:
        asked.append((repository, allow_patterns, local_files_only))
        if repository == "org/away":
            raise ConnectionError("no route")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    served, engines = ServedAdapters(("demo",)), Engines()
    resolver = AdapterResolver(served, engines.add, repositories=("org/sql", "org/away"))

    async def resolve() -> None:
        for name in ("org/other", "org/sqlx", "org", "sql", "org/sql/../other"):
            await resolver.resolve(name)
        assert not asked
        await resolver.resolve("org/sql")
        await resolver.resolve("org/sql/sub/folder")
        await resolver.resolve("org/sql/none")
        for _ in range(2):
            with pytest.raises(RequestFaultError, match=r"'org/away': downloading it .* failed: ConnectionError"):
                await resolver.resolve("org/away")

    asyncio.run(resolve())
    assert served.names == ["org/sql", "org/sql/sub/folder"]
    assert [each[0] for each in asked] == ["org/sql"] * 3 + ["org/away"]
    assert all(offline for _, _, offline in asked), "tests are offline"
    assert asked[1][1] == [
        f"sub/folder/{name}"
        for name in ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin", "adapters.safetensors")
    ]


def test_a_repository_that_is_not_in_the_cache_is_not_there_when_offline() -> None:
    served, engines = ServedAdapters(("demo",)), Engines()
    asyncio.run(AdapterResolver(served, engines.add, repositories=("org/none",)).resolve("org/none"))
    assert not served.names


def test_options_and_variables() -> None:
    lines: list[str] = []
    given = {"VLLM_LORA_RESOLVER_CACHE_DIR": "/adapters", "VLLM_LORA_RESOLVER_HF_REPO_LIST": "org/a, org/b"}
    found = from_environment(given, lines.append)
    assert found == {"lora_resolver_dir": "/adapters", "lora_resolver_hf_repos": ("org/a", "org/b")}
    with pytest.raises(ConfigError, match="lora_resolver_hf_repos='a': must have the form organization/name"):
        ServerOptions(lora_resolver_hf_repos=("a",))
