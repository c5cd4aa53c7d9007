"""Prompts of combinations which the training text never holds, and the rule of a right answer.

Only the standard library is needed, so that tests of any engine may run these prompts.
"""

from __future__ import annotations

import json
import re
from random import Random

from scripts.demo_model import arithmetic, calls, facts, json_objects, lists, stories
from scripts.demo_model.example import BRIEF, HELPFUL, Example
from scripts.demo_model.split import draw

_PLAN = (
    (arithmetic.make, "arithmetic", 20),
    (facts.make, "facts", 20),
    (json_objects.make, "json", 20),
    (calls.make, "calls", 20),
    (lists.make, "lists", 6),
    (facts.languages, "languages", 5),
    (facts.reading, "reading", 5),
    (stories.make, "stories", 2),
    (stories.make, "completions", 2),
)
"""Maker, kind and its share in a hundred prompts."""


def prompts(seed: int = 0, count: int = 200) -> list[Example]:
    """Distinct held-out requests, the kinds in fixed shares, the same for the same seed.

    An item's `messages` and `tools` go to a chat; where `chat` is false its `prompt` is raw text to continue.
    """
    rng = Random(f"held out {seed}")
    kinds = [plan for plan in _PLAN for _ in range(plan[2])]
    items: list[Example] = []
    seen: set[str] = set()
    tries = 0
    while len(items) < count:
        tries += 1
        if tries > 1000 * count:
            raise ValueError(f"there are no {count} distinct held-out prompts")
        maker, kind, _ = kinds[(len(items) * 37) % len(kinds)]  # 37 and 100 share no factor: every prefix is mixed
        item = draw(maker, rng, held_out=True)
        if item.kind != kind or item.key in seen:
            continue
        seen.add(item.key)
        items.append(item.under(rng.choice((None, None, HELPFUL, BRIEF))) if kind in ("arithmetic", "facts") else item)
    return items


def is_right(item: Example, answer: str) -> bool:
    """Whether the answer, special tokens left out, is right; how strictly depends on the kind.

    JSON and calls must parse and equal what was asked for; a sum must be stated, and the last number in the answer; a
    story must be about what was asked and end as a sentence; anything else must be the ideal answer, or its bare word.
    """
    answer = answer.strip()
    match item.kind:
        case "arithmetic":
            stated = re.search(rf"(^|= ){item.expected}\b", answer) is not None
            return stated and re.findall(r"\d+", answer)[-1] == item.expected
        case "json":
            return bool(_parsed(answer) == item.expected)
        case "calls":
            return _called(answer) == item.expected if item.expected else calls.is_refusal(answer)
        case "lists":
            return answer == item.answer
        case "stories" | "completions":
            complete = len(answer.split()) >= 40 and not answer[-1].isalnum()
            return complete and all(word in item.prompt + answer for word in item.expected)
        case _:
            return answer in (item.answer, item.expected)


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _called(answer: str) -> list[object]:
    return [_parsed(body) for body in re.findall(r"<tool_call>\n(.*?)\n</tool_call>", answer, re.DOTALL)]
