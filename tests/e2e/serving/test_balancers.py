"""A server behind a balancer of the operator's: its one engine has its number among all."""

from pathlib import Path

import httpx
import pytest

from tests.serving.server_process import SMALL, running


@pytest.mark.slow
def test_external(tmp_path: Path) -> None:
    with running(tmp_path / "log", "demo", *SMALL, "-dp", "4", "--data-parallel-rank", "3") as server:
        body = {"prompt": "Once upon a time", "max_tokens": 4}
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
        assert answer.status_code == 200
        text = httpx.get(f"{server.url}/metrics").text
        assert 'generation_tokens_total{engine="3"' in text
        assert 'engine="0"' not in text
        refused = httpx.post(f"{server.url}/scale", json={"new_data_parallel_size": 2})
        assert refused.status_code == 400
        assert "balancer" in refused.json()["error"]["message"]
