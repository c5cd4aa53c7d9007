"""The training text: an endless, seeded stream of documents. None shows a held-out combination."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from scripts.demo_model import arithmetic, calls, chat, facts, json_objects, lists, stories
from scripts.demo_model.example import HELPFUL, STYLES, Example, Message, Tool
from scripts.demo_model.split import draw
from scripts.demo_model.world import NAMES

Maker = Callable[[Random], Example]

MAKERS: dict[str, tuple[Maker, int]] = {
    "arithmetic": (arithmetic.make, 30),
    "facts": (facts.make, 22),
    "json": (json_objects.make, 22),
    "lists": (lists.make, 14),
    "emoji": (lists.emoji, 4),
    "languages": (facts.languages, 9),
    "reading": (facts.reading, 8),
    "stories": (stories.make, 3),
}
"""What a chat without functions asks for, and how often; the order is part of the seed's meaning."""


def _example(rng: Random) -> Example:
    maker: Maker = rng.choices(*zip(*MAKERS.values(), strict=True))[0]
    return draw(maker, rng)


def _turns(example: Example) -> list[Message]:
    return [{"role": "user", "content": example.prompt}, {"role": "assistant", "content": example.answer}]


def _greeting(rng: Random) -> tuple[str, list[Message]]:
    """A first turn about the assistant itself, whose name only the system prompt tells."""
    name = rng.choice((*NAMES, "Pip", "Nori", "Bo", "Ada"))
    ask = rng.choice(("Who are you?", "What is your name?", "Hello! Who is there?"))
    answer = f"I am {name}. How can I help you?"
    messages = [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]
    return f"Your name is {name}.", messages


def _small_talk(rng: Random) -> list[Message]:
    ask, answer = rng.choice(
        (
            ("Hello!", "Hello! How can I help you?"),
            ("Good morning!", "Good morning! How can I help you?"),
            ("Thank you!", "You are welcome! 😊"),
            ("What can you do?", "I can tell stories, add numbers, write JSON and answer questions."),
        )
    )
    return [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]


def conversation(rng: Random, turns: int) -> str:
    """A chat of so many questions under one system prompt, or none."""
    system, messages = rng.choice(STYLES), list[Message]()
    if rng.random() < 0.05:
        system, messages = _greeting(rng)
    for _ in range(turns):
        example = _example(rng)
        while not example.chat:
            example = _example(rng)
        messages += _turns(example.under(system))
        if rng.random() < 0.03:
            messages += _small_talk(rng)
    return chat.render([{"role": "system", "content": system}, *messages] if system else messages)


def conversation_with_tools(rng: Random) -> str:
    """Requests which call for functions; mostly results and an answer follow, sometimes there is another question."""
    offered, messages = calls.offer(rng), list[Message]()
    if rng.random() < 0.2:
        messages.append({"role": "system", "content": HELPFUL})
    tools: tuple[Tool, ...] = ()
    for _ in range(rng.randint(1, 3)):
        if rng.random() < 0.12:
            messages += _turns(draw(facts.make, rng))
        example = draw(lambda rng: calls.make(rng, offered), rng)
        tools = example.tools
        messages += _turns(example)
        if example.expected and rng.random() < 0.5:
            results = [calls.result(rng, call) for call in example.expected]
            messages += [{"role": "tool", "content": content} for content, _ in results]
            messages += [{"role": "assistant", "content": " ".join(said for _, said in results)}]
    return chat.render(messages, tools)


def _raw(rng: Random, text: str) -> str:
    """Raw text ends with the separator and starts with it half of the time, so both ways of prompting work."""
    return (chat.SEPARATOR if rng.random() < 0.5 else "") + text + chat.SEPARATOR


def _raw_story(rng: Random) -> str:
    example = draw(stories.make, rng)
    return _raw(rng, example.answer if example.chat else example.prompt + example.answer)


def _copying(rng: Random) -> str:
    return _raw(rng, lists.copying(rng))


_DOCUMENTS: tuple[tuple[Callable[[Random], str], int], ...] = (
    (lambda rng: conversation(rng, 1), 22),
    (lambda rng: conversation(rng, rng.randint(2, 4)), 24),
    (lambda rng: conversation(rng, rng.randint(8, 20)), 1),
    (conversation_with_tools, 13),
    (lambda rng: _raw(rng, arithmetic.drill(rng)), 22),
    (lambda rng: _raw(rng, facts.article(rng)), 6),
    (_copying, 6),
    (_raw_story, 4),
)


_LESSONS: tuple[tuple[Callable[[Random], str], int], ...] = (
    (lambda rng: _raw(rng, lists.echo(rng)), 15_000),
    (_copying, 21_000),
)
"""What comes first, and how many documents of it: to copy words as they are, then in another form.

The heads which find a word again and what followed it come about within these thousand steps, and whatever needs them
is learned fast afterwards. Where copying is only a part of the mixture they had not come about after 7,000 steps.
"""


def documents(seed: int) -> Iterator[str]:
    """Training documents without end, the same for the same seed, special tokens written out: lessons, then all."""
    rng = Random(seed)
    for make, count in _LESSONS:
        for _ in range(count):
            yield make(rng)
    yield from mixed(rng)


def mixed(rng: Random) -> Iterator[str]:
    """Documents of all kinds without end."""
    makers, weights = zip(*_DOCUMENTS, strict=True)
    while True:
        yield rng.choices(makers, weights)[0](rng)
