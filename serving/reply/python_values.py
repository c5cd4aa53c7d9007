"""Arguments as Python writes them, as JSON."""

import ast
import json
import math
import warnings
from collections.abc import Sequence

from jaxllm.serving.reply.scalars import WORDS, number, whole_characters

_INFINITE = "1e999"
"""A number that is written with too large an exponent, by another one: no float has it."""


def python_arguments(pieces: Sequence[str]) -> str | None:
    """Pieces such as `a=1` as an object of JSON; None: they are something else."""
    if not pieces[-1].strip():
        pieces = pieces[:-1]
    found = dict[str, str]()
    for piece in pieces:
        key, equals, value = piece.partition("=")
        if not equals or not key.strip():
            return None
        try:
            found[key.strip()] = _literal(value.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return None
    return "{" + ", ".join(f"{_text(key)}: {value}" for key, value in found.items()) + "}"


def _literal(text: str) -> str:
    """A value written as JSON or Python, as JSON. Raises `ValueError` and what Python's parser raises."""
    known = number(text)
    if known is not None:
        return known
    try:
        json.loads(text, parse_constant=_refuse)
    except ValueError:
        with warnings.catch_warnings():
            # Python warns of escapes that it does not know.
            warnings.simplefilter("ignore")
            return _written(ast.parse(text, mode="eval").body)
    return text


def _written(node: ast.expr) -> str:
    """An expression that is a value as JSON. Raises `ValueError`."""
    word: str | None
    match node:
        case ast.Constant(value=str(value)):
            return _text(value)
        case ast.Constant(value=bool() | None as value):
            word = WORDS[str(value).lower()]
        case ast.Name(id=name):
            word = WORDS.get(name)
        case ast.Constant(value=int(value)):
            word = str(value)
        case ast.Constant(value=float(value)):
            word = repr(value) if math.isfinite(value) else _INFINITE
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=ast.Constant(value=int() | float())):
            sign = "-" if isinstance(node.op, ast.USub) else ""
            word = number(sign + _written(node.operand))
        case ast.List() | ast.Tuple() | ast.Set():
            return f"[{', '.join(_written(item) for item in node.elts)}]"
        case ast.Dict():
            pairs = zip(node.keys, node.values, strict=True)
            return f"{{{', '.join(f'{_key(key)}: {_written(value)}' for key, value in pairs)}}}"
        case _:
            word = None
    if word is None:
        raise ValueError(f"{type(node).__name__} is not in JSON")
    return word


def _key(node: ast.expr | None) -> str:
    if node is None:
        raise ValueError("an object within another is not in JSON")
    written = _written(node)
    return written if written.startswith('"') else _text(written)


def _text(value: str) -> str:
    return json.dumps(whole_characters(value), ensure_ascii=False)


def _refuse(name: str) -> None:
    raise ValueError(name)
