"""Adapters with several API server processes: whichever one loads or unloads them, all serve the same."""

from pathlib import Path

import httpx
import psutil

from tests.adapter_folders import write_adapter
from tests.e2e.serving.test_api_servers import children, connections, until
from tests.serving.server_process import SMALL, ServerProcess, running

BODY = {"prompt": "Once upon a time there was", "max_tokens": 8, "temperature": 0}


def clients_of_each(server: ServerProcess, workers: list[psutil.Process]) -> list[httpx.Client]:
    """Connections, at least one to each process: which one gets it is the system's choice."""
    clients = list[httpx.Client]()
    while len(clients) < 8 or not all(map(connections, workers)):
        assert len(clients) < 200
        clients.append(httpx.Client(base_url=server.url, timeout=60))
        assert clients[-1].get("/health").status_code == 200
    return clients


def answers(clients: list[httpx.Client], model: str) -> set[tuple[int, str]]:
    found = [client.post("/v1/completions", json={"model": model, **BODY}) for client in clients]
    return {(each.status_code, each.json()["choices"][0]["text"] if each.is_success else "") for each in found}


def test_all_serve_what_one_has_loaded(tmp_path: Path) -> None:
    for seed, name in enumerate(("one", "two", "found/three")):
        write_adapter(tmp_path / name, seed + 1, scale=0.3)
    flags = ["--enable-lora", "--max-loras", "2", "--max-lora-rank", "8", "--lora-dir", str(tmp_path)]
    flags += ["--lora-modules", f"one={tmp_path / 'one'}", "--lora-resolver-dir", str(tmp_path / "found")]
    with running(tmp_path / "log", "demo", *SMALL, "--api-server-count", "2", *flags) as server:
        workers = children(server, "server.workers")
        clients = clients_of_each(server, workers)
        base, one = answers(clients, "demo"), answers(clients, "one")
        assert len(base) == len(one) == 1
        assert base != one
        load = {"lora_name": "two", "lora_path": "two"}
        for unloader in (clients[0], clients[-1]):
            assert answers(clients, "two") == {(404, "")}
            assert clients[0].post("/v1/load_lora_adapter", json=load).status_code == 200
            assert {client.post("/v1/load_lora_adapter", json=load).status_code for client in clients} == {400}
            two = answers(clients, "two")
            assert len(two) == 1
            assert two not in (base, one)
            for client in clients:
                assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["demo", "one", "two"]
            assert unloader.post("/v1/unload_lora_adapter", json={"lora_name": "two"}).status_code == 200
        assert len(answers(clients, "three")) == 1
        assert clients[0].post("/v1/unload_lora_adapter", json={"lora_name": "one"}).status_code == 200
        workers[0].kill()
        until(lambda: len(children(server, "server.workers")) == 2 and workers[0] not in psutil.process_iter())
        fresh = clients_of_each(server, children(server, "server.workers"))
        assert answers(fresh, "one") == {(404, "")}, "a process that is started again knows what was unloaded"
        for client in (*clients, *fresh):
            client.close()
