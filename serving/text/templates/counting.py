"""Puts into a compiled template what counts while it is rendered: calls of filters that `environment` has."""

from typing import Any, Final, TypeVar

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

_CHAIN: Final = 16
"""Texts that are added before somebody looks how long they are together."""
TICK, WRITTEN, JOINED, GROWN, MADE, COMPARED = (
    f"counted {name}" for name in ("tick", "output", "part", "sum", "list", "comparison")
)
"""Names that no template can write."""

AnyExpr = TypeVar("AnyExpr", bound=nodes.Expr)


def with_counting(template: nodes.Template) -> nodes.Template:
    """The template, changed in place."""
    counted = _Counting().visit(template)
    assert isinstance(counted, nodes.Template)
    return counted


class _Counting(NodeTransformer):
    """Puts the counting into a template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (the name is Jinja's)
        self.generic_visit(node)
        if node.test is not None:
            node.test = nodes.And(_call(TICK, nodes.Const(1)), node.test)
        return _ticking(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return _ticking(self.generic_visit(node))

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        return _ticking(self.generic_visit(node))

    def visit_Block(self, node: nodes.Block) -> nodes.Node:  # noqa: N802
        return _ticking(self.generic_visit(node))

    def visit_Output(self, node: nodes.Output) -> nodes.Node:  # noqa: N802
        plain = (nodes.TemplateData, nodes.Const)
        node.nodes = [
            each if isinstance(each, plain) else _call(WRITTEN, self._count_sum(each) if _terms(each) <= _CHAIN
                                                       else self.visit(each))
            for each in node.nodes
        ]  # fmt: skip
        return node

    def visit_Add(self, node: nodes.Add) -> nodes.Node:  # noqa: N802
        return _call(GROWN, self._count_sum(node))

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        parts = [each if isinstance(each, nodes.Const) else _call(JOINED, self.visit(each)) for each in node.nodes]
        while len(parts) > _CHAIN:
            chunks = [parts[start : start + _CHAIN] for start in range(0, len(parts), _CHAIN)]
            parts = [_call(GROWN, nodes.Concat(chunk, lineno=node.lineno)) for chunk in chunks]
        return _call(GROWN, nodes.Concat(parts, lineno=node.lineno))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        sides = [node.expr, *(operand.expr for operand in node.ops)]
        self.generic_visit(node)
        # What is compared with something small takes no time.
        if sum(not _is_small(each) for each in sides) > 1:
            node.expr = _call(COMPARED, node.expr)
            for operand in node.ops:
                operand.expr = _call(COMPARED, operand.expr)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:  # noqa: N802
        is_small = all(map(_is_small, node.args))
        self.generic_visit(node)
        if not is_small:
            node.node = _call(COMPARED, node.node)
            node.args = [_call(COMPARED, each) for each in node.args]
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.arg, (nodes.Const, nodes.Slice)):
            node.arg = _call(COMPARED, node.arg)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        if not isinstance(node.key, nodes.Const):
            node.key = _call(COMPARED, node.key)
        return node

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return self._container(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        return self._container(node) if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return self._container(node)

    def _container(self, node: AnyExpr) -> nodes.Expr:
        self.generic_visit(node)
        is_plain = all(isinstance(each, (nodes.Const, nodes.Pair)) for each in node.iter_child_nodes())
        return node if is_plain and not isinstance(node, nodes.Dict) else _call(MADE, node)

    def _count_sum(self, node: nodes.Expr, terms: int = 0) -> nodes.Expr:
        """A sum within a sum that is looked at as a whole."""
        if not isinstance(node, nodes.Add) or terms >= _CHAIN:
            visited: nodes.Expr = self.visit(node)
            return visited
        node.left = self._count_sum(node.left, terms + 1)
        node.right = self._count_sum(node.right, terms + 1)
        return node


def _is_small(node: nodes.Node) -> bool:
    if isinstance(node, (nodes.List, nodes.Tuple)):
        return all(map(_is_small, node.items))
    return isinstance(node, nodes.Const)


def _terms(node: nodes.Node) -> int:
    return 1 + sum(1 for _ in node.find_all(nodes.Add)) if isinstance(node, nodes.Add) else 1


def _call(name: str, value: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno or 1)


def _ticking(node: Any) -> Any:
    """A loop, macro or block that counts each time its body begins, with the fixed text in it."""
    size = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
    line = node.lineno
    node.body = [nodes.ExprStmt(_call(TICK, nodes.Const(1 + size, lineno=line)), lineno=line), *node.body]
    return node
