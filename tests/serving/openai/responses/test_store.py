"""The bounded store of responses, against a model of it."""

import asyncio

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jaxllm.serving.openai.protocol.response_answers import ModelResponse
from jaxllm.serving.openai.protocol.response_items import MessageItem
from jaxllm.serving.openai.responses.store import EventLog, ResponseStore, Stored, Turn


def response(name: str, *, running: bool = False) -> ModelResponse:
    return ModelResponse(
        id=name, created_at=0, status="in_progress" if running else "completed", background=running, instructions=None,
        max_output_tokens=None, max_tool_calls=None, metadata={}, model="demo", output=[], parallel_tool_calls=True,
        previous_response_id=None, prompt_cache_key=None, reasoning={}, safety_identifier=None, store=True,
        temperature=1.0, text={}, tool_choice="auto", tools=[], top_logprobs=0, top_p=1.0, truncation="disabled",
        user=None,
    )  # fmt: skip


def message(name: str, size: int) -> MessageItem:
    return MessageItem(type="message", role="user", content="x" * size, id=name)


class StoreMachine(RuleBasedStateMachine):
    """Puts, reads, ends and deletes responses; some continue others."""

    MOST = 4
    BYTES = 6000

    def __init__(self) -> None:
        super().__init__()
        self.store = ResponseStore(self.MOST, self.BYTES)
        self.order: list[str] = []
        self.all: dict[str, Stored] = {}
        self.number = 0

    @rule(size=st.integers(0, 3000), running=st.booleans(), choice=st.integers(0, 99))
    def put(self, size: int, running: bool, choice: int) -> None:
        self.number += 1
        name = f"resp_{self.number}"
        done = [each for each in self.order if not self.all[each].runs]
        before = self.all[done[choice % len(done)]].turn if done and choice % 3 else None
        made = Stored(response(name, running=running), Turn(before, [message(f"msg_{self.number}", size)]))
        self.all[name] = made
        self.store.put(made)
        self.order.append(name)
        self._evict()

    @precondition(lambda self: self.order)
    @rule(choice=st.integers(0, 99))
    def get(self, choice: int) -> None:
        name = self.order[choice % len(self.order)]
        assert self.store.get("", name) is self.all[name]
        self.order.remove(name)
        self.order.append(name)

    @precondition(lambda self: self.order)
    @rule(choice=st.integers(0, 99))
    def end(self, choice: int) -> None:
        name = self.order[choice % len(self.order)]
        made = self.all[name]
        if made.runs:
            made.response.status = "completed"
            made.turn.made = [message(f"{name}_answer", 10)]
            self.store.put(made)
            self.order.remove(name)
            self.order.append(name)
            self._evict()

    @precondition(lambda self: self.order)
    @rule(choice=st.integers(0, 99))
    def delete(self, choice: int) -> None:
        name = self.order.pop(choice % len(self.order))
        self.store.delete(self.all[name])
        assert self.store.get("", name) is None

    def _evict(self) -> None:
        for name in list(self.order):
            if len(self.order) <= self.MOST and self._bytes() <= self.BYTES:
                break
            if not self.all[name].runs:
                self.order.remove(name)

    def _bytes(self) -> int:
        kept = [self.all[name] for name in self.order]
        turns = {id(turn): turn for each in kept for turn in each.turn.history()}
        return sum(len(msgspec.json.encode(each.response)) for each in kept) + sum(
            len(msgspec.json.encode(turn.given + turn.made)) for turn in turns.values()
        )

    @invariant()
    def agrees(self) -> None:
        assert list(self.store) == self.order
        assert self.store.num_bytes == self._bytes()
        items = {item.id for name in self.order for item in self.all[name].turn.items()}
        assert all(self.store.item("", f"msg_{number}") is not None for number in range(1, self.number + 1)
                   if f"msg_{number}" in items)  # fmt: skip
        assert all(self.store.item("", f"msg_{number}") is None for number in range(1, self.number + 1)
                   if f"msg_{number}" not in items)  # fmt: skip


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)


def test_a_store_of_nothing() -> None:
    assert not ResponseStore(0, 100).enabled


def test_what_is_too_large_alone_is_not_kept() -> None:
    store = ResponseStore(10, 5000)
    store.put(Stored(response("small"), Turn(None, [])))
    store.put(Stored(response("large"), Turn(None, [message("m", 9000)])))
    assert len(store) == store.num_bytes == 0


async def test_readers_of_a_log_may_come_at_any_time() -> None:
    log = EventLog()

    async def read() -> list[bytes]:
        got = list[bytes]()
        while True:
            await log.wait(len(got))
            if len(log.events) == len(got):
                return got
            got = list(log.events)

    early = asyncio.ensure_future(read())
    await asyncio.sleep(0)
    for index in range(5):
        log.add([b"%d" % index])
        await asyncio.sleep(0)
    middle = asyncio.ensure_future(read())
    await asyncio.sleep(0)
    log.end()
    assert await early == await middle == await read() == log.events
