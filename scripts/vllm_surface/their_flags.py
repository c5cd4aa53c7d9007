"""Flags of `vllm serve`, and what follows each on a command line."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from scripts.vllm_surface.source import Field, Source

Shape = Literal["switch", "value", "values", "optional", "json"]


@dataclass(frozen=True)
class TheirFlag:
    """A flag: its long name without dashes, its short ones, and what follows it."""

    name: str
    shorts: tuple[str, ...]
    shape: Shape
    default: str
    group: str


def their_flags(source: Source) -> dict[str, TheirFlag]:
    """Flags by name, in the order of declaration."""
    found: dict[str, TheirFlag] = {}
    for place in ("engine/arg_utils.py", "entrypoints/common/cli_args.py"):
        for path in source.files(place):
            for flag in _declared(source, source.tree(path)):
                found.setdefault(flag.name, flag)
    for item in source.fields("FrontendArgs", source.configs).values():
        name = item.name.replace("_", "-")
        found.setdefault(name, TheirFlag(name, (), _shape(item), item.default, "frontend"))
    return found


def _declared(source: Source, tree: ast.Module) -> Iterator[TheirFlag]:
    """Flags that are written out: `group.add_argument("--name", "-n", **some_kwargs["field"])`."""
    owners = {
        node.targets[0].id: ast.unparse(node.value.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "get_kwargs"
    }
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        names = [str(each.value) for each in node.args if isinstance(each, ast.Constant)]
        longs = [each for each in names if each.startswith("--")]
        if node.func.attr != "add_argument" or not longs:
            continue
        shorts = tuple(each.removeprefix("-") for each in names if not each.startswith("--"))
        text = ast.unparse(node)
        shape, default = _written_shape(text), ""
        of_field = re.search(r"(\w+_kwargs)\['(\w+)'\]", text)
        if of_field and of_field[1] in owners:
            item = source.fields(owners[of_field[1]], source.configs).get(of_field[2])
            if item is not None:
                shape, default = _shape(item), item.default
        yield TheirFlag(longs[0].removeprefix("--"), shorts, shape, default, ast.unparse(node.func.value))


def _written_shape(text: str) -> Shape:
    if "store_true" in text or "BooleanOptionalAction" in text:
        return "switch"
    return "values" if re.search(r"nargs='[+*]'", text) else "value"


def _shape(item: Field) -> Shape:
    """As `vllm.engine.arg_utils.get_kwargs` decides."""
    kinds = {part.strip() for part in re.sub(r"\[[^|]*\]", "", item.annotation).split("|")}
    if kinds == {"bool", "str", "None"}:
        return "optional"
    if re.search(r"\bbool\b", item.annotation) and not re.search(r"dict\[", item.annotation):
        return "switch"
    if re.match(r"(list|set|tuple)\b", item.annotation):
        return "values"
    return "json" if re.search(r"\bdict\b|Config\b", item.annotation) else "value"
