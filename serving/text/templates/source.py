"""Reads the source of a chat template: which values it compares with, which fields it reads."""

from collections.abc import Iterator

from jinja2 import nodes

from jaxllm.serving.text.templates.environment import parsed
from jaxllm.serving.text.templates.facts import TemplateFacts

_CONTENT = "content"
_PASSES_ON = {"trim", "list", "default", "d", "selectattr", "rejectattr", "select", "reject", "map"}
"""Filters whose result is still the content."""
_TAKES_PARTS = {"selectattr", "rejectattr", "map", "first", "last"}


_MOST_RENAMINGS = 8
"""Assignments in a row, from the last to the first, by which a content is followed; sources may be hostile."""


def read_source(template: str) -> TemplateFacts:
    """The facts; of a template that is not valid, none."""
    try:
        tree = parsed(template)
        return TemplateFacts(frozenset(_values(tree)), frozenset(_fields(tree)), _reads_parts(tree))
    # Not only Jinja's errors: of nesting too deep, say, or numbers too long. Rendering rejects them with a reason.
    except Exception:  # noqa: BLE001
        return TemplateFacts()


def _values(tree: nodes.Node) -> Iterator[str]:
    for compare in tree.find_all(nodes.Compare):
        # `'text' in part` looks for a field, `part.type in ('text', 'thinking')` compares.
        sides = [compare.expr] if compare.ops and compare.ops[0].op in ("eq", "ne") else []
        yield from _texts([*sides, *(operand.expr for operand in compare.ops)])
    for listed in tree.find_all(nodes.List):
        yield from _texts(listed.items)
    for several in tree.find_all(nodes.Tuple):
        yield from _texts(several.items)
    for pair in tree.find_all(nodes.Pair):
        yield from _texts([pair.key])
    for call in tree.find_all((nodes.Filter, nodes.Test)):
        yield from _texts(call.args)


def _fields(tree: nodes.Node) -> Iterator[str]:
    for attribute in tree.find_all(nodes.Getattr):
        yield attribute.attr
    for item in tree.find_all(nodes.Getitem):
        yield from _texts([item.arg])
    for compare in tree.find_all(nodes.Compare):
        if any(operand.op in ("in", "notin") for operand in compare.ops):
            yield from _texts([compare.expr])
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr == "get":
            yield from _texts(call.args[:1])


def _texts(expressions: list[nodes.Expr]) -> Iterator[str]:
    for each in expressions:
        if isinstance(each, nodes.Const) and isinstance(each.value, str):
            yield each.value


def _reads_parts(tree: nodes.Node) -> bool:
    names = _content_names(tree)
    return (
        any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))
        or any(_is_index(item.arg) and _is_content(item.node, names) for item in tree.find_all(nodes.Getitem))
        or any(
            each.name in _TAKES_PARTS and each.node is not None and _is_content(each.node, names)
            for each in tree.find_all(nodes.Filter)
        )
    )


def _content_names(tree: nodes.Node) -> set[str]:
    """Variables that hold a content, by assignment."""
    names = {_CONTENT}
    assignments = [each for each in tree.find_all(nodes.Assign) if isinstance(each.target, nodes.Name)]
    for _ in range(_MOST_RENAMINGS):
        more = {each.target.name for each in assignments if _is_content(each.node, names)} - names  # type: ignore[attr-defined]
        if not more:
            break
        names |= more
    return names


def _is_content(node: nodes.Node, names: set[str]) -> bool:
    match node:
        case nodes.Name():
            return node.name in names
        case nodes.Getattr():
            return node.attr == _CONTENT
        case nodes.Getitem():
            return isinstance(node.arg, nodes.Const) and node.arg.value == _CONTENT
        case nodes.Call():
            return isinstance(node.node, nodes.Getattr) and node.node.attr == "get" and _CONTENT in _texts(node.args)
        case nodes.Filter():
            return node.name in _PASSES_ON and node.node is not None and _is_content(node.node, names)
        case nodes.CondExpr():
            return any(each is not None and _is_content(each, names) for each in (node.expr1, node.expr2))
        case nodes.Or():
            return _is_content(node.left, names)
    return False


def _is_index(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Const) and isinstance(node.value, int)
