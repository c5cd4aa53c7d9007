"""A server that is killed while it writes files of KV pages; the next one goes on from what is there."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil

from jaxllm.kv.tiers.disk.page_file import HEADER_BYTES, parse_name
from tests.e2e.serving.conftest import FLAGS
from tests.serving.server_process import running

PROMPTS = [f"Story {number}: once upon a time there was a dog who {'ran and ran and ' * 25}" for number in range(12)]
BODY: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


def complete(url: str, prompt: str, **more: Any) -> str:
    response = httpx.post(f"{url}/v1/completions", json={**BODY, "prompt": prompt, **more}, timeout=120)
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


def metric(url: str, name: str) -> float:
    lines = httpx.get(f"{url}/metrics", timeout=60).text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"jaxllm:{name}_total"))


def kill(process: psutil.Process) -> None:
    """All of a server at once, without a word."""
    for each in [process, *process.children(recursive=True)]:
        each.kill()


def test_a_restart_after_a_kill(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    size = ("--kv-offloading-size", "0.1", "--kv-offloading", "always")
    flags = (*FLAGS, *size, "--kv-offloading-path", str(folder), "--kv-offloading-disk-size", "0.2")
    with running(tmp_path / "first", *flags) as server:
        assert f"0.10 GiB of host memory, 0.20 GiB of files in {folder}" in server.log
        expected = [complete(server.url, prompt) for prompt in PROMPTS[:4]]
        with ThreadPoolExecutor(8) as pool:
            others = [pool.submit(complete, server.url, prompt, max_tokens=100) for prompt in PROMPTS[4:]]
            while not any(each.done() for each in others):
                pass
            kill(psutil.Process(server.process.pid))
        server.process.wait(30)
    files = [path for path in folder.rglob("*") if path.is_file() and parse_name(path.name)]
    assert files
    assert len({path.stat().st_size for path in files}) == 1
    assert files[0].stat().st_size > HEADER_BYTES
    with running(tmp_path / "second", *flags) as server:
        assert [complete(server.url, prompt) for prompt in PROMPTS[:4]] == expected
        assert metric(server.url, "kv_offload_tiering_chunk_hits") >= 20
        assert metric(server.url, "external_prefix_cache_hits") >= 20 * 16
        assert not metric(server.url, "kv_offload_tiering_promotion_job_failures")
        assert complete(server.url, PROMPTS[0], cache_salt="mine") == expected[0]
        assert "Traceback" not in server.log
