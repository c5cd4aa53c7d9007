"""Command-line flags made from the fields of `SamplingParams`."""

import argparse
import ast
import inspect
import json
import textwrap
from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import Any, get_args

import msgspec

from jaxllm.config import option_fields
from jaxllm.flags import integer
from jaxllm.requests.repetition import RepetitionDetectionParams
from jaxllm.requests.sampling_params import INTERNAL_FIELDS, SamplingParams
from jaxllm.requests.structured_outputs import StructuredOutputsParams

_HIDDEN = {*INTERNAL_FIELDS, "detokenize", "thinking_token_budget"}

ENGINE_OPTIONS = frozenset(item.name for _, item in option_fields())
"""Fields whose name is an engine option too (`seed`): where there are engine flags, those stand for both."""


def add_sampling_flags(
    parser: argparse.ArgumentParser, defaults: Mapping[str, Any], without: Collection[str] = ENGINE_OPTIONS
) -> None:
    """Add a flag per field but those of `without`. Flags that are not given leave no trace.

    `defaults` are those that help should name.
    """
    group = parser.add_argument_group("sampling options", "Choice of tokens, and end of the output.")
    docs = field_docs(SamplingParams)
    for field in _fields(without):
        default = defaults.get(field.name, field.default)
        is_number = isinstance(default, (int, float)) and not isinstance(default, bool)
        shown = f" (default: {default})" if is_number else ""
        reader = _reader(field.type)
        repeat = " Repeat the flag for several values." if reader.get("action") == "append" else ""
        group.add_argument(
            "--" + field.name.replace("_", "-"),
            dest=field.name,
            default=argparse.SUPPRESS,
            help=f"{docs.get(field.name, '')}{repeat}{shown}".replace("%", "%%"),
            **reader,
        )


def explicit_sampling(args: argparse.Namespace, without: Collection[str] = ENGINE_OPTIONS) -> dict[str, Any]:
    """The fields given on the command line."""
    return {field.name: getattr(args, field.name) for field in _fields(without) if hasattr(args, field.name)}


def field_docs(owner: type) -> dict[str, str]:
    """The docstrings below the fields of a class, which Python itself does not keep."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
    assert isinstance(definition, ast.ClassDef)
    docs = {}
    for field, doc in pairwise(definition.body):
        match field, doc:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = " ".join(text.split())
    return docs


def _fields(without: Collection[str]) -> list[msgspec.structs.FieldInfo]:
    return [
        item for item in msgspec.structs.fields(SamplingParams) if item.name not in without and item.name not in _HIDDEN
    ]


def _reader(annotation: Any) -> dict[str, Any]:
    """How argparse reads a value of this type. Repeated flags make lists of texts: `--stop A --stop B`."""
    kinds = set(get_args(annotation) or (annotation,)) - {type(None)}
    if bool in kinds:
        return {"action": argparse.BooleanOptionalAction}
    if list[str] in kinds:
        return {"action": "append", "metavar": "TEXT"}
    if list[int] in kinds:
        return {"type": integer, "nargs": "+", "metavar": "ID"}
    if kinds & {dict[int, float], StructuredOutputsParams, RepetitionDetectionParams}:
        return {"type": _json_object, "metavar": "JSON"}
    if float in kinds:
        return {"type": float, "metavar": "FLOAT"}
    if str in kinds:
        return {"metavar": "TEXT"}
    assert kinds == {int}, annotation
    return {"type": integer, "metavar": "INT"}


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return value
