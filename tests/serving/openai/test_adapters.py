"""LoRA adapters by name, in every interface of a real server, and loaded while it runs."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from jaxllm.errors import ConfigError
from jaxllm.serving.http.adapters import NamedAdapter, parse_modules
from tests.adapter_folders import write_adapter
from tests.conftest import RunPython
from tests.serving.server_process import SMALL, ServerProcess, running

PROMPT = "Once upon a time there was"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lora")
    for seed, name in enumerate(("one", "two", "three")):
        write_adapter(root / name, seed + 1, scale=0.3)
    write_adapter(root / "wide", 9, rank=16)
    write_adapter(root / "found" / "team" / "four", 4, scale=0.3)
    write_adapter(root / "found" / "wide", 9, rank=16)
    return root


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folders = ("--lora-dir", str(folder), "--lora-resolver-dir", str(folder / "found"))
    flags = ("--enable-lora", "--max-loras", "2", "--max-lora-rank", "8", *folders)
    given = ("--lora-modules", f"one={folder / 'one'}", f'{{"name": "two", "path": "{folder / "two"}"}}')
    with running(tmp_path_factory.mktemp("log") / "log", *SMALL, *flags, *given) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def complete(client: openai.OpenAI, model: str) -> str:
    return client.completions.create(model=model, prompt=PROMPT, max_tokens=8, temperature=0).choices[0].text


def load(server: ServerProcess, name: str, path: str, **more: object) -> httpx.Response:
    body = {"lora_name": name, "lora_path": path, **more}
    return httpx.post(f"{server.url}/v1/load_lora_adapter", json=body, timeout=60)


def unload(server: ServerProcess, name: str) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/unload_lora_adapter", json={"lora_name": name}, timeout=60)


def test_adapters_are_models(server: ServerProcess, client: openai.OpenAI, folder: Path) -> None:
    models = {model.id: model for model in client.models.list().data}
    assert set(models) == {"demo", "one", "two"}
    shown = models["one"].model_dump()
    assert (shown["root"], shown["parent"]) == (str(folder / "one"), "demo")
    assert client.models.retrieve("two").id == "two"
    answers = {name: complete(client, name) for name in models}
    assert len(set(answers.values())) == 3, "each model answers in its own way"
    assert {name: complete(client, name) for name in reversed(models)} == answers


def test_every_interface_knows_the_name(server: ServerProcess, client: openai.OpenAI) -> None:
    def ask(path: str, **body: object) -> dict[str, object]:
        answer = httpx.post(f"{server.url}{path}", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    talk = [{"role": "user", "content": "Tell me a story about a cat."}]
    found: dict[str, set[str]] = {}
    for model in ("demo", "one", "two"):
        common = {"model": model, "temperature": 0}
        chat = ask("/v1/chat/completions", messages=talk, max_tokens=8, **common)
        message = ask("/v1/messages", messages=talk, max_tokens=8, **common)
        response = ask("/v1/responses", input="Tell me a story about a cat.", max_output_tokens=8, **common)
        assert chat["model"] == message["model"] == response["model"] == model
        assert ask("/tokenize", model=model, prompt=PROMPT)["count"]
        found[model] = {
            str(chat["choices"][0]["message"]["content"]),  # type: ignore[index]
            str(message["content"][0]["text"]),  # type: ignore[index]
            str(response["output"][0]["content"][0]["text"]),  # type: ignore[index]
        }
    assert all(len(texts) == 1 for texts in found.values()), "the interfaces ask the same"
    assert len(set.union(*found.values())) == 3
    stream = client.completions.create(model="one", prompt=PROMPT, max_tokens=8, temperature=0, stream=True)
    assert "".join(event.choices[0].text for event in stream) == complete(client, "one")


def test_loading_and_unloading(server: ServerProcess, client: openai.OpenAI, folder: Path) -> None:
    with pytest.raises(openai.NotFoundError, match="this server has `demo`, `one`, `two`"):
        complete(client, "three")
    answer = load(server, "three", "three")
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'three' added successfully.")
    text = complete(client, "three")
    assert text not in {complete(client, name) for name in ("demo", "one", "two")}
    assert load(server, "three", "three").json()["error"]["code"] == "adapter_loaded"
    # In a slot, it is not read again; the host keeps but two.
    assert complete(client, "three") == text
    write_adapter(folder / "three", 8, scale=0.3)
    assert complete(client, "three") == text
    assert load(server, "three", "three", load_inplace=True).status_code == 200
    assert complete(client, "three") != text
    answer = unload(server, "three")
    assert (answer.status_code, answer.text) == (200, "Success: LoRA adapter 'three' removed successfully.")
    assert unload(server, "three").status_code == 404
    with pytest.raises(openai.NotFoundError):
        complete(client, "three")


def test_a_name_below_the_folder_is_found(server: ServerProcess, client: openai.OpenAI) -> None:
    others = {complete(client, name) for name in ("demo", "one", "two")}
    text = complete(client, "team/four")
    assert text not in others
    assert complete(client, "team/four") == text
    assert client.models.retrieve("team/four").id == "team/four"
    with pytest.raises(openai.BadRequestError, match=r"adapter 'wide': .*rank"):
        complete(client, "wide")
    for name in ("team", "five", "../one", "team/../../one"):
        with pytest.raises(openai.NotFoundError, match="this server has"):
            complete(client, name)
    assert unload(server, "team/four").status_code == 200


@pytest.mark.parametrize(
    ("name", "path", "status", "message"),
    [
        ("demo", "three", 400, "is a name of the model"),
        ("x", "../..", 400, "is outside the folder of adapters"),
        ("x", "/etc", 400, "is outside the folder of adapters"),
        ("x", "nothing", 400, "adapter_config.json"),
        ("x", "wide", 400, "has rank 16; at most 8 is taken"),
        ("", "three", 400, "lora_name must have 1 to 256 characters"),
        ("x" * 300, "three", 400, "lora_name must have 1 to 256 characters"),
        ("x", "three\0", 400, "lora_path"),
    ],
)
def test_what_is_refused(server: ServerProcess, name: str, path: str, status: int, message: str) -> None:
    answer = load(server, name, path)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]["message"]
    assert httpx.get(f"{server.url}/health", timeout=60).status_code == 200


def test_modules_of_the_command_line() -> None:
    assert parse_modules(["a=/x", '{"name": "b", "path": "y=z", "base_model_name": "c"}']) == [
        NamedAdapter("a", "/x"),
        NamedAdapter("b", "y=z", "c"),
    ]
    for wrong in (
        "a",
        "=b",
        "a=",
        "{",
        '{"name": "a"}',
        '{"name": "a", "path": 1}',
        '{"name": "a", "path": "b", "c": 1}',
    ):
        with pytest.raises(ConfigError, match="lora_modules: "):
            parse_modules([wrong])
    with pytest.raises(ConfigError, match="two adapters are called 'a'"):
        parse_modules(["a=x", "a=y"])


def test_a_module_that_cannot_be_served_ends_the_start(run_python: RunPython, tmp_path: Path) -> None:
    command = ("-m", "jaxllm.serving.cli.main", "serve", *SMALL, "--lora-modules", f"x={tmp_path}")
    without = run_python(*command)
    assert (without.returncode, without.stderr.count("\n")) == (2, 1), without.stderr
    assert "lora_modules: the engine takes no adapters; give --enable-lora as well" in without.stderr
    wrong = run_python(*command, "--enable-lora", "--enforce-eager")
    assert wrong.returncode == 2, wrong.stderr
    assert "lora_modules: adapter 'x'" in wrong.stderr
    assert "adapter_config.json is not there" in wrong.stderr
