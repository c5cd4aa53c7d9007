"""Every number of every request, at and beyond its bounds: no mistake of the server, and no end of its engine."""

import httpx
import pytest

from tests.serving.number_sweep import sweep
from tests.serving.server_process import ServerProcess

GREEDY = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "return_token_ids": True}


def check(server: ServerProcess, http: httpx.Client, *, everything: bool) -> int:
    """Send all cases; how many there were."""
    engine = server.engine().pid
    before = http.post("/v1/completions", json=GREEDY).json()["choices"][0]["token_ids"]
    count, wrong = sweep(http, everything=everything)
    assert not wrong, "\n".join(wrong[:20])
    assert server.engine().pid == engine
    assert http.post("/v1/completions", json=GREEDY).json()["choices"][0]["token_ids"] == before
    return count


def test_no_number_at_its_ends_breaks_anything(server: ServerProcess, http: httpx.Client) -> None:
    assert check(server, http, everything=False) > 3000


@pytest.mark.exhaustive
def test_no_number_at_all_breaks_anything(server: ServerProcess, http: httpx.Client) -> None:
    assert check(server, http, everything=True) > 30_000
