"""Stored responses and those in the background outlive a server that is killed, with its `--store-dir`."""

import signal
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.responses import Response

from tests.serving.openai.test_disconnect import until
from tests.serving.server_process import SMALL, ServerProcess, running

KEYS = ("first", "second")
LONG: dict[str, Any] = {
    "model": "demo", "max_output_tokens": 230, "background": True, "extra_body": {"ignore_eos": True},
    "top_logprobs": 2, "include": ["message.output_text.logprobs"], "temperature": 1.0,
}  # fmt: skip


def of(server: ServerProcess, key: str) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=120)


def done(client: OpenAI, made: Response) -> Response:
    until(lambda: client.responses.retrieve(made.id).status not in ("queued", "in_progress"), seconds=60)
    return client.responses.retrieve(made.id)


def joined(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def test_responses_go_on_after_a_restart(tmp_path: Path) -> None:
    flags = (*SMALL, f"--store-dir={tmp_path / 'store'}", "--shutdown-timeout=0.2")
    more: Any = {"environment": {"JAXLLM_API_KEY": ",".join(KEYS)}}
    with running(tmp_path / "log", "demo", *flags, **more) as server, of(server, "first") as client:
        one = client.responses.create(model="demo", input="What is 2 + 3?", temperature=0, max_output_tokens=20)
        two = client.responses.create(
            model="demo", input="And now plus 1?", previous_response_id=one.id, temperature=0, max_output_tokens=20
        )
        gone = client.responses.create(model="demo", input="Forget this.", temperature=0, max_output_tokens=4)
        client.responses.delete(gone.id)
        stream: Any = client.responses.create(input="Tell me a story.", stream=True, **LONG)
        seen: list[Any] = [next(stream) for _ in range(20)]
        plain = client.responses.create(input="Tell me another.", **LONG)
        server.process.send_signal(signal.SIGKILL)
        begun = seen[0].response
    with running(tmp_path / "log2", "demo", *flags, **more) as server, of(server, "first") as client:
        assert client.responses.retrieve(one.id) == one
        assert client.responses.retrieve(two.id) == two
        third = client.responses.create(
            model="demo", input="And plus 2?", previous_response_id=two.id, temperature=0, max_output_tokens=20
        )
        for missing in (gone.id, "resp_1"):
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(missing)
        with of(server, "second") as other, pytest.raises(openai.NotFoundError):
            other.responses.retrieve(one.id)
        rest = list(client.responses.retrieve(begun.id, stream=True, starting_after=seen[-1].sequence_number))
        events: list[Any] = [*seen, *rest]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert events == list(client.responses.retrieve(begun.id, stream=True))
        last: Any = done(client, begun).output[0]
        assert events[-1].type == "response.incomplete"
        assert events[-1].response == client.responses.retrieve(begun.id)
        assert (last.id, joined(events)) == (events[3].item.id, last.content[0].text)
        assert len(last.content[0].logprobs) == 230
        assert sum(len(event.logprobs) for event in events if event.type == "response.output_text.delta") == 230
        assert done(client, plain).status == "incomplete"
        assert all(f"{made.id} goes on" in server.log for made in (begun, plain))
        waiting = client.responses.create(input="Tell me a story.", **LONG)
        assert client.responses.cancel(waiting.id).status == "cancelled"
        # One that is told to end leaves what runs to the next.
        again = client.responses.create(input="Tell me a story.", **LONG)
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(30)
    # The next has little time for each.
    flag = "--request-timeout=0.05"
    with running(tmp_path / "log3", "demo", *flags, flag, **more) as server, of(server, "first") as client:
        assert client.responses.retrieve(third.id) == third
        late = done(client, again)
        assert late.status == "failed"
        assert late.error is not None
        assert "not answered within 0.05 s (--request-timeout)" in late.error.message
