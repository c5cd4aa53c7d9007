"""Batches within the quota of whoever made them: they wait, and nobody is refused."""

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from openai import OpenAI

from tests.serving.openai.files.test_files import begin, line, upload, wait
from tests.serving.server_process import SMALL, running

CLIENTS = {
    "clients": [
        {"name": "ada", "keys": ["a"], "requests_per_minute": 120},
        {"name": "ben", "keys": ["b"], "tokens_per_minute": 1200, "max_concurrent_requests": 1},
    ]
}


def test_batches_wait_for_their_owners_quota(tmp_path: Path) -> None:
    """The buckets hold a minute's worth: what is beyond it takes its time on any machine."""
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps(CLIENTS))
    keys.chmod(0o600)
    flags = (*SMALL, f"--api-key-file={keys}", "--enable-log-requests")
    with running(tmp_path / "log", "demo", *flags) as server, ExitStack() as stack:
        made = (OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=120) for key in "ab")
        ada, ben = map(stack.enter_context, made)
        long: dict[str, Any] = {"max_tokens": 100, "ignore_eos": True}
        began = time.monotonic()
        requests = begin(ada, upload(ada, *(line(str(index), max_tokens=1) for index in range(126))))
        tokens = begin(ben, upload(ben, *(line(str(index), **long) for index in range(12))))
        ended = []
        for client, begun, count in ((ada, requests, 126), (ben, tokens, 12)):
            batch = wait(client, begun)
            ended.append(time.monotonic() - began)
            assert batch.request_counts is not None
            assert (batch.status, batch.request_counts.completed) == ("completed", count)
        # Eight more than the bucket holds, two a second; two of them made the batch.
        assert ended[0] > 3.5
        # 20 tokens a second beyond 1200 of 12 * 105.
        assert ended[1] > 2.0
        # What is refused is tried again, one request at a time.
        tries = sum(tokens.id in text and "prompt tokens" in text for text in server.log.splitlines())
        assert 12 <= tries <= 2 * 12 + 2 * ended[1]
