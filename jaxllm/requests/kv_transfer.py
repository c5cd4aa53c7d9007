"""What a request says of pages that another engine has, or is to fetch: vLLM's `kv_transfer_params`.

A proxy sends a prompt to a first engine with `do_remote_decode`, and gets a dictionary with its answer, in which
`do_remote_prefill` is set. It sends the prompt and this dictionary to a second engine.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from jaxllm.errors import RequestError
from jaxllm.requests.sampling_params import SamplingParams

KEY = "kv_transfer_params"
"""The parameters' name in `SamplingParams.extra_args`, and in requests and answers of the server."""
MOST_CHARACTERS = 256
"""Of a name or an address."""


class KVTransferParams(msgspec.Struct, frozen=True, kw_only=True):
    """One of two: run the prompt and keep its pages (`do_remote_decode`), or fetch them (`do_remote_prefill`).

    The rest says where from; `remote_request_id` is what the pages are kept under, `remote_num_tokens` how many tokens
    they have. Pages are found by digests: the numbers in `remote_block_ids` are not looked at.
    """

    do_remote_decode: bool = False
    do_remote_prefill: bool = False
    remote_engine_id: str | None = None
    remote_request_id: str | None = None
    remote_host: str | None = None
    remote_port: int | None = None
    remote_num_tokens: int | None = None
    has_blocks: bool = True
    """Whether there are `remote_block_ids`: an empty list means that nothing is kept."""

    @property
    def names_pages(self) -> bool:
        """Whether it says where pages are."""
        named = None not in (self.remote_request_id, self.remote_host, self.remote_port)
        return self.do_remote_prefill and self.has_blocks and named


def transfer_params(params: SamplingParams) -> KVTransferParams | None:
    """What a request says, None where it asks for no transfer. Raises `RequestError`."""
    given = None if params.extra_args is None else params.extra_args.get(KEY)
    return None if given is None else read_transfer_params(given)


def is_for_another(params: SamplingParams) -> bool:
    """Whether another engine is to go on with a prompt. Raises `RequestError`."""
    found = transfer_params(params)
    return found is not None and found.do_remote_decode


def without_transfer(params: SamplingParams) -> SamplingParams:
    """The parameters, but of a request that is not about other engines."""
    others = {name: value for name, value in (params.extra_args or {}).items() if name != KEY}
    made: SamplingParams = msgspec.structs.replace(params, extra_args=others or None)
    return made


def read_transfer_params(given: Any) -> KVTransferParams | None:
    """The parameters in a dictionary as proxies send it; other keys are ignored. Raises `RequestError`."""
    if isinstance(given, KVTransferParams):
        return given
    if not isinstance(given, Mapping):
        raise RequestError(f"{KEY}: expected an object, got {type(given).__name__}", KEY)
    decodes, prefills = (_switch(given, name) for name in ("do_remote_decode", "do_remote_prefill"))
    if decodes and prefills:
        raise RequestError(f"{KEY}: do_remote_decode and do_remote_prefill are both true; set one of them", KEY)
    if not decodes and not prefills:
        return None
    blocks = given.get("remote_block_ids", given.get("has_blocks", True))
    return KVTransferParams(
        do_remote_decode=decodes,
        do_remote_prefill=prefills,
        remote_engine_id=_text(given, "remote_engine_id"),
        remote_request_id=_text(given, "remote_request_id"),
        remote_host=_text(given, "remote_host"),
        remote_port=_number(given, "remote_port", 1, (1 << 16) - 1),
        remote_num_tokens=_number(given, "remote_num_tokens", 0, (1 << 31) - 1),
        has_blocks=bool(blocks) or blocks is None,
    )


def short_form(params: KVTransferParams) -> dict[str, Any]:
    """The parameters for `extra_args`, without those that have their defaults."""
    made: dict[str, Any] = msgspec.to_builtins(params)
    return {name: value for name, value in made.items() if value not in (None, False) or name == "has_blocks"}


def _switch(given: Mapping[str, Any], name: str) -> bool:
    value = given.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"{KEY}: {name}={value!r} must be true or false", KEY)
    return bool(value)


def _text(given: Mapping[str, Any], name: str) -> str | None:
    value = given.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= MOST_CHARACTERS or not value.isprintable():
        raise RequestError(f"{KEY}: {name} must be a text of 1 to {MOST_CHARACTERS} characters", KEY)
    return value


def _number(given: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10 else value
    if type(number) is not int or not low <= number <= high:
        raise RequestError(f"{KEY}: {name}={str(value)[:40]!r} must be an integer from {low} to {high}", KEY)
    return number
