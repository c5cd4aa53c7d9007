"""From a request of the Responses API to a request of the engine."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from starlette.requests import Request

from jaxllm.errors import PromptTooLongError, RequestError, quoted
from jaxllm.serving.http import errors
from jaxllm.serving.http.body.base import UnsupportedError
from jaxllm.serving.http.renaming import renaming
from jaxllm.serving.http.state import ServerState
from jaxllm.serving.openai.chat.call import prepare_chat
from jaxllm.serving.openai.chat.plan import ChatCall
from jaxllm.serving.openai.chat.prompt import count_tokens
from jaxllm.serving.openai.protocol.messages import Message
from jaxllm.serving.openai.protocol.response_items import Item, ItemReference, MessageItem
from jaxllm.serving.openai.protocol.responses import LOGPROBS, ResponsesRequest
from jaxllm.serving.openai.responses.convert import FIELDS, ItemMessages, chat_request
from jaxllm.serving.openai.responses.items import numbered
from jaxllm.serving.openai.responses.store import ResponseStore, Turn

Result = TypeVar("Result")

_FEW_ITEMS = 64
"""Items of a conversation: about a millisecond of work."""
_MOST_METADATA = (16, 64, 512)
"""Pairs, and characters of a name and of a value."""


def check(body: ResponsesRequest, store: ResponseStore) -> None:
    """Raise `RequestError` for fields that are wrong, or cannot be combined."""
    for index, name in enumerate(body.include or ()):
        if name != LOGPROBS:
            raise UnsupportedError(
                f"include[{index}]={quoted(name)}: only {LOGPROBS!r} is supported", f"include[{index}]"
            )
    if body.top_logprobs and LOGPROBS not in (body.include or ()):
        raise RequestError(f"top_logprobs needs include=[{LOGPROBS!r}]", "top_logprobs")
    if body.logprob_token_ids is not None and LOGPROBS not in (body.include or ()):
        raise RequestError(f"logprob_token_ids needs include=[{LOGPROBS!r}]", "logprob_token_ids")
    pairs, name_length, value_length = _MOST_METADATA
    metadata = body.metadata or {}
    if len(metadata) > pairs or any(len(k) > name_length or len(v) > value_length for k, v in metadata.items()):
        raise RequestError(
            f"metadata: at most {pairs} pairs are allowed, with names of at most {name_length} and values of at most "
            f"{value_length} characters",
            "metadata",
        )
    if body.background and body.store is False:
        raise RequestError("background requires a stored response: omit store", "background")
    if not store.enabled:
        for field in ("store", "background", "previous_response_id"):
            if getattr(body, field):
                raise UnsupportedError(f"{field}: {NOT_KEPT}", field)


NOT_KEPT = "this server stores no responses (--max-stored-responses is 0, or --api-server-count above 1)"


def read_turn(body: ResponsesRequest, items: Sequence[Item | ItemReference], store: ResponseStore, owner: str) -> Turn:
    """The items of the request's input after the conversation of the same owner that it continues.

    Raises `RequestError` and `HttpError`.
    """
    before: Turn | None = None
    if body.previous_response_id is not None:
        previous = store.get(owner, body.previous_response_id)
        if previous is None:
            raise errors.unknown_response(body.previous_response_id, "previous_response_id")
        if previous.runs:
            raise RequestError(
                f"previous_response_id={quoted(body.previous_response_id)}: is still {previous.response.status}",
                "previous_response_id",
            )
        before = previous.turn
    given = [_resolved(item, f"input[{index}]", store, owner) for index, item in enumerate(items)]
    return Turn(before, given)


def _resolved(item: Item | ItemReference, path: str, store: ResponseStore, owner: str) -> Item:
    if not isinstance(item, ItemReference):
        return numbered(item)
    known = store.item(owner, item.id)
    if known is None:
        raise RequestError(f"{path}.id={quoted(item.id)}: no stored response has this item", f"{path}.id")
    return known


async def count(request: Request, server: ServerState, body: ResponsesRequest, turn: Turn) -> int:
    """Tokens that the model would read, or would have to. Raises `RequestError` for whatever else is wrong."""
    try:
        call = await prepare(request, server, body, turn, ["counted"])
    except RequestError as error:
        if not _too_long(error):
            raise
    else:
        return len(call.request.prompt_token_ids)
    chat = await _work(server, turn, lambda: _conversation(body, turn))
    with renaming(FIELDS, chat.origins, chat.images):
        return await count_tokens(request, server, await _work(server, turn, lambda: chat_request(body, chat)))


async def prepare(
    request: Request, server: ServerState, body: ResponsesRequest, turn: Turn, engine_ids: Sequence[str]
) -> ChatCall:
    """Make a request for the engine. Raises `RequestError`."""
    chat = await _work(server, turn, lambda: _conversation(body, turn))
    with renaming(FIELDS, chat.origins, chat.images):
        asked = await _work(server, turn, lambda: chat_request(body, chat))
        try:
            return await prepare_chat(request, server, asked, engine_ids, limit="max_output_tokens")
        except RequestError as error:
            if body.truncation != "auto" or not _too_long(error):
                raise
            whole = error
        # The fewest messages left out with which it fits.
        kept: ChatCall | None = None
        cuts = _cuts(chat.messages)
        low, high = 0, len(cuts)
        while low < high:
            middle = (low + high) // 2
            asked.messages = _without(chat.messages, cuts[middle])
            try:
                kept = await prepare_chat(request, server, asked, engine_ids, limit="max_output_tokens")
                high = middle
            except RequestError as error:
                if not _too_long(error):
                    raise
                low = middle + 1
        if kept is None:
            raise whole
        return kept


async def _work(server: ServerState, turn: Turn, function: Callable[[], Result]) -> Result:
    """The result of work on a conversation, off the event loop where it is long."""
    before = 0 if turn.before is None else sum(1 for _ in turn.before.items())
    if before + len(turn.given) <= _FEW_ITEMS:
        return function()
    return await server.llm.run_text(function)


def _conversation(body: ResponsesRequest, turn: Turn) -> ItemMessages:
    chat = ItemMessages()
    if body.instructions is not None:
        chat.add(MessageItem(type="message", role="system", content=body.instructions), "instructions")
    for item in turn.before.items() if turn.before is not None else ():
        chat.add(item, "previous_response_id")
    for index, item in enumerate(turn.given):
        chat.add(item, "input" if isinstance(body.input, str) else f"input[{index}]")
    return chat


def _too_long(error: RequestError) -> bool:
    code = error.code if isinstance(error, errors.BodyError) else None
    return isinstance(error, PromptTooLongError) or code == "context_length_exceeded"


def _cuts(messages: Sequence[Message]) -> list[int]:
    """Where a conversation may begin: at the user's messages but the first."""
    return [index for index, message in enumerate(messages) if message.role == "user"][1:]


def _without(messages: Sequence[Message], cut: int) -> list[Message]:
    """The messages from `cut` on, and what the system says before."""
    return [message for message in messages[:cut] if message.role in ("system", "developer")] + list(messages[cut:])
