"""Grammars that nobody should send: each is refused, and nobody else notices."""

from typing import Any


def references(count: int, *, mixed: bool) -> dict[str, Any]:
    """A schema with a chain of so many definitions."""
    chain: dict[str, Any] = {}
    for number in range(count):
        link: dict[str, Any] = {"$ref": f"#/$defs/{number + 1}"}
        chain[str(number)] = {"allOf": [link, {"minLength": 1}]} if mixed else link
    return {"$defs": {**chain, str(count): {"type": "string"}}, "$ref": "#/$defs/0"}


def properties(count: int) -> dict[str, Any]:
    """A schema whose definitions are objects that have each other."""
    chain: dict[str, Any] = {
        str(number): {"type": "object", "properties": {"a": {"$ref": f"#/$defs/{number + 1}"}}}
        for number in range(count)
    }
    return {"$defs": {**chain, str(count): {"type": "string"}}, "$ref": "#/$defs/0"}


def rules(count: int, name: str, *, gbnf: bool = False) -> str:
    """A grammar with a chain of so many rules, or terminals."""
    sign, start = (" ::=", "root") if gbnf else (":", "start")
    chain = [f'{name}{number}{sign} {name}{number + 1} "a"' for number in range(count)]
    return "\n".join([f"{start}{sign} {name}0", *chain, f'{name}{count}{sign} "b"', ""])


def doublings(count: int) -> str:
    """A grammar whose terminal is 2 ** count letters long."""
    chain = [f"T{number}: T{number + 1} T{number + 1}" for number in range(count)]
    return "\n".join(["start: T0", *chain, f'T{count}: "a"?', ""])


SCHEMAS: dict[str, dict[str, Any]] = {
    "references": references(2500, mixed=False),
    "mixed references": references(1500, mixed=True),
    "properties": properties(1200),
    "options": {"type": "string", "pattern": f"^a{'?a' * 15_000}$"},
}
"""JSON schemas, which fit wherever a schema does."""

FORMS: dict[str, dict[str, Any]] = {
    **{f"json: {name}": {"json": schema} for name, schema in SCHEMAS.items()},
    "rules": {"grammar": rules(4000, "r")},
    "terminals": {"grammar": rules(4000, "T")},
    "rules in GBNF": {"grammar": rules(4000, "r", gbnf=True)},
    "doublings": {"grammar": doublings(18)},
    "options": {"regex": "a" + "?a" * 15_000},
    "more options": {"regex": "a" + "?a" * 30_000},
    "hidden options": {"regex": "b{60}" + "a?" * 15_000},
    "hidden classes": {"regex": "b{60}" + "[ab]?" * 5_000},
    "structures": {
        "structural_tag": {
            "structures": [{"begin": "<a>", "schema": references(2500, mixed=False), "end": "</a>"}],
            "triggers": ["<a>"],
        }
    },
}
"""Fields of `structured_outputs`."""
