"""Sums, differences and products, as questions and as raw drills."""

from __future__ import annotations

from random import Random

from scripts.demo_model.example import Example
from scripts.demo_model.split import draw
from scripts.demo_model.world import GOODS, NAMES

LARGEST = 30
"""Operands of sums and differences reach this; factors reach 10."""

_WORDS = {"+": "plus", "-": "minus", "x": "times"}
_VALUES = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "x": lambda a, b: a * b}


def _operands(rng: Random, operator: str) -> tuple[int, int]:
    if operator == "x":
        return rng.randint(1, 10), rng.randint(1, 10)
    first, second = rng.randint(0, LARGEST), rng.randint(0, LARGEST)
    return (max(first, second), min(first, second)) if operator == "-" else (first, second)


def _story_problem(rng: Random, a: int, b: int, operator: str) -> tuple[str, str]:
    name, (_, goods, _) = rng.choice(NAMES), rng.choice(GOODS)
    change = f"finds {b} more" if operator == "+" else f"gives away {b}"
    return (
        f"{name} has {a} {goods} and {change}. How many {goods} does {name} have now?",
        f" {name} has {_VALUES[operator](a, b)} {goods} now.",
    )


def make(rng: Random) -> Example:
    """A question with an integer for an answer; sums and differences are split by their operands.

    Products are split by operands and wording, since a table can only be learned by heart.
    """
    operator = rng.choices("+-x", (5, 4, 2))[0]
    a, b = _operands(rng, operator)
    value = str(_VALUES[operator](a, b))
    wording, tail = rng.randrange(5 if operator != "x" else 4), ""
    match wording:
        case 0:
            prompt = f"What is {a} {operator} {b}?"
        case 1:
            prompt = f"How much is {a} {_WORDS[operator]} {b}?"
        case 2:
            prompt = f"{a} {operator} {b} = ?"
        case 3:
            prompt = f"Please work out {a} {operator} {b}."
        case _:
            prompt, tail = _story_problem(rng, a, b, operator)
    key = f"{a}{operator}{b}" + (f" wording {wording}" if operator == "x" else "")
    return Example("arithmetic", key, prompt, f"{a} {operator} {b} = {value}.{tail}", value)


def drill(rng: Random) -> str:
    """Several equations of the training side, one per line, which teach far more per token than questions do."""

    def equation(rng: Random) -> Example:
        operator = rng.choices("+-x", (6, 5, 1))[0]
        a, b = _operands(rng, operator)
        return Example("drill", f"{a}{operator}{b}", "", f"{a} {operator} {b} = {_VALUES[operator](a, b)}", "")

    return "\n".join(draw(equation, rng).answer for _ in range(rng.randint(4, 16)))
