"""Two engines of one process that exchange pages over real sockets."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from jaxllm.engine.engine import Engine
from jaxllm.requests.kv_transfer import KEY
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from tests.e2e.driving import Answer, make_engine

OPTIONS: dict[str, Any] = {
    "block_size": 16, "max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 256,
    "num_gpu_blocks_override": 100,
}  # fmt: skip
FOR_ANOTHER: dict[str, Any] = {
    "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
    "remote_host": None, "remote_port": None,
}  # fmt: skip
"""What proxies for NIXL send to the first engine."""
PATIENCE = 60.0
LONG = {"fetch_timeout": 100, "connect_timeout": 100}
"""Other processes may keep the machine busy."""


def producer(**options: Any) -> Engine:
    given = {"kv_role": "kv_producer", "kv_port": 0, **options.pop("transfer", {})}
    return make_engine(**{**OPTIONS, "kv_transfer_config": given, **options})


def consumer(**options: Any) -> Engine:
    given = {"kv_role": "kv_consumer", "kv_connector_extra_config": LONG, **options.pop("transfer", {})}
    return make_engine(**{**OPTIONS, "kv_transfer_config": given, **options})


@contextmanager
def pair(**options: Any) -> Iterator[tuple[Engine, Engine]]:
    first, second = producer(**options), consumer(**options)
    try:
        yield first, second
    finally:
        first.close()
        second.close()


def with_params(request: Request, transfer: dict[str, Any] | None, **params: Any) -> Request:
    """The request again, with parameters of a transfer."""
    again = request.sibling(request.request_id)
    given = {name: getattr(request.params, name) for name in SamplingParams.__struct_fields__}
    extra = {} if transfer is None else {"extra_args": {KEY: transfer}}
    again.params = SamplingParams.from_dict({**given, **extra, **params})
    return again


def drive(engine: Engine, requests: Iterable[Request], beside: Callable[[], object] = lambda: None) -> dict[str, Any]:
    """All outputs of requests: an `Answer` each, and the transfer's parameters of those for others."""
    answers: dict[str, Answer] = {}
    told: dict[str, dict[str, Any] | None] = {}
    for each in requests:
        engine.add_request(each)
    deadline = time.monotonic() + PATIENCE
    while engine.has_unfinished_requests():
        assert time.monotonic() < deadline, "requests do not end"
        beside()
        for output in engine.step():
            answer = answers.setdefault(output.request_id, Answer())
            answer.token_ids += output.token_ids
            answer.finish_reason = output.finish_reason
            answer.num_cached_tokens = output.num_cached_tokens
            if output.refusal is not None:
                told[output.request_id] = {"refusal": output.refusal, "is_fault": output.is_fault}
            if output.kv_transfer_params is not None:
                told[output.request_id] = output.kv_transfer_params
    return {"answers": answers, "told": told}


def apart(first: Engine, second: Engine, requests: list[Request]) -> dict[str, Answer]:
    """What requests get whose prompts one engine computes, and another one goes on with."""
    begun = drive(first, [with_params(each, FOR_ANOTHER, max_tokens=1, min_tokens=0) for each in requests])
    told = begun["told"]
    found = drive(
        second, [with_params(each, told.get(each.request_id)) for each in requests], beside=first.copy_while_idle
    )
    answers: dict[str, Answer] = found["answers"]
    for name, answer in answers.items():
        assert begun["answers"][name].token_ids == answer.token_ids[:1]
    return answers


def nothing_left(first: Engine, second: Engine) -> None:
    """No leases, no held pages, and nothing under way, soon."""
    deadline = time.monotonic() + PATIENCE
    while not (_is_empty(first) and _is_empty(second)):
        assert time.monotonic() < deadline, "something is left over"
        first.copy_while_idle()
        second.copy_while_idle()
        time.sleep(0.001)
    for engine in (first, second):
        engine.scheduler.check_integrity()


def _is_empty(engine: Engine) -> bool:
    assert engine.host_tier is not None
    exchange, tier = engine.host_tier.exchange, engine.host_tier._tier
    assert exchange is not None
    if exchange.is_behind or engine.pages.num_held_pages:
        return False
    kept = 0 if tier.fetches is None else tier.fetches.num_kept
    copies = (copy for entry in tier.host._entries.values() for copy in entry.values())
    return not kept and not any(copy.readers or copy.state == "writing" for copy in copies)
