"""Over HTTP, requests reach an operator's logits processors by `vllm_xargs`."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.serving.conftest import FLAGS
from tests.serving.server_process import running

pytestmark = pytest.mark.slow
BODY: dict[str, Any] = {"prompt": "Once upon a time there was a little dog who", "temperature": 0, "max_tokens": 12}


def test_a_ban_of_a_processor_is_that_of_a_bias(tmp_path: Path) -> None:
    flags = (*FLAGS, "--logits-processors", "tests.e2e.processors:CompiledBans")
    with (
        running(tmp_path / "log", *flags) as server,
        httpx.Client(base_url=server.url, timeout=300) as client,
    ):

        def complete(**fields: Any) -> dict[str, Any]:
            answer = client.post("/v1/completions", json={**BODY, "return_token_ids": True, **fields})
            assert answer.status_code == 200, answer.text
            choice: dict[str, Any] = answer.json()["choices"][0]
            return choice

        plain = complete()
        banned = plain["token_ids"][:2]
        biased = complete(logit_bias={str(each): -100 for each in banned})
        assert complete(vllm_xargs={"ban": banned})["token_ids"] == biased["token_ids"] != plain["token_ids"]
        assert complete()["token_ids"] == plain["token_ids"]
        wrong = client.post("/v1/completions", json={**BODY, "vllm_xargs": {"ban": list(range(9))}})
        assert wrong.status_code == 400
        assert "CompiledBans returned state of shape (9,), not (4,)" in wrong.json()["error"]["message"]
