"""Jinja's environment for chat templates: Hugging Face's names, in a sandbox whose every loop and call is counted.

Counting is compiled in: a tick in each loop, macro and block, and a look at what is written or given a name. Between
two looks a template can do nothing that takes long: sums of texts are short, and what multiplies texts is asked before
(`guards`, `filters`). The looks are filters, which compile to plain calls.
"""

from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NoReturn, TypeVar

from jinja2 import Template, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from jaxllm.serving.text.templates.budget import Budget, TemplateLimitError, size_of
from jaxllm.serving.text.templates.filters import guarded_filters
from jaxllm.serving.text.templates.guards import check_operation, check_value, guarded_call

_CHAIN: Final = 16
"""Texts that are added before somebody looks how long they are together."""
_TICK, _WRITTEN, _JOINED, _GROWN, _MADE = (f"counted {name}" for name in ("tick", "output", "part", "sum", "list"))
"""Names that no template can write."""
_MOST_FORMAT: Final = 256
_CACHED: Final = 32

AnyExpr = TypeVar("AnyExpr", bound=nodes.Expr)


class BudgetContext(Context):
    """A context with a budget. Each of a rendering has the same."""

    budget: Budget

    def derived(self, locals: dict[str, Any] | None = None) -> Context:
        """A context with more variables."""
        made = super().derived(locals)
        assert isinstance(made, BudgetContext)
        made.budget = self.budget
        return made


class _Generation(Extension):
    """`{% generation %}` marks what the model writes, for training; it changes nothing else."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates. Render them with `render`."""

    context_class = BudgetContext
    intercepted_binops = frozenset(("*", "%", "**", "//"))

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], cache_size=0)
        self.filters = {
            **guarded_filters(),
            _TICK: _tick,
            _WRITTEN: _written,
            _JOINED: _joined,
            _GROWN: _grown,
            _MADE: _made,
        }
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": _Dictionary(),
            "namespace": _Namespace,
        }
        # It makes random words, as many as one likes.
        del self.globals["lipsum"]

    def _generate(
        self, source: nodes.Template, name: str | None, filename: str | None, defer_init: bool = False
    ) -> str:
        counted = _Counting().visit(source)
        assert isinstance(counted, nodes.Template)
        counted.set_environment(self)
        return super()._generate(counted, name, filename, defer_init=defer_init)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The result of an operator that may make much of little."""
        check_operation(_budget(context), operator, left, right)
        return self.binop_table[operator](left, right)

    def call(self, context: Context, called: Any, /, *args: Any, **named: Any) -> Any:
        """What a call from a template returns."""
        budget = _budget(context)
        budget.spend(1)
        found = guarded_call(budget, called, args, named)
        if found is NotImplemented and isinstance(getattr(called, "__self__", called), _Dictionary):
            budget.has_made = True
        return super().call(context, called, *args, **named) if found is NotImplemented else found


def _budget(context: Context) -> Budget:
    assert isinstance(context, BudgetContext)
    return context.budget


@pass_context
def _tick(context: BudgetContext, units: int) -> bool:
    context.budget.spend(units)
    return True


@pass_context
def _written(context: BudgetContext, value: Any) -> Any:
    """What stands in the output."""
    if isinstance(value, str):
        context.budget.spend(len(value))
    else:
        check_value(context.budget, value)
    return value


@pass_context
def _joined(context: BudgetContext, value: Any) -> Any:
    """What becomes a part of a text, which is counted itself."""
    if not isinstance(value, str):
        check_value(context.budget, value)
    return value


@pass_context
def _grown(context: BudgetContext, value: Any) -> Any:
    """A sum that is kept."""
    if isinstance(value, str):
        context.budget.copied(len(value))
    elif isinstance(value, (list, tuple)):
        context.budget.has_made = True
        context.budget.copied(8 * len(value))
    return value


@pass_context
def _made(context: BudgetContext, value: Any) -> Any:
    """A list or dictionary of the template's own, which may have one value many times, in several depths."""
    budget = context.budget
    budget.has_made = True
    budget.spend(1 + len(value))
    return value


class _Counting(NodeTransformer):
    """Puts the counting into a template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (the name is Jinja's)
        self.generic_visit(node)
        if node.test is not None:
            node.test = nodes.And(_call(_TICK, nodes.Const(1)), node.test)
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
            each if isinstance(each, plain) else _call(_WRITTEN, self._in_sum(each) if _terms(each) <= _CHAIN
                                                       else self.visit(each))
            for each in node.nodes
        ]  # fmt: skip
        return node

    def visit_Add(self, node: nodes.Add) -> nodes.Node:  # noqa: N802
        return _call(_GROWN, self._in_sum(node))

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        parts = [each if isinstance(each, nodes.Const) else _call(_JOINED, self.visit(each)) for each in node.nodes]
        while len(parts) > _CHAIN:
            chunks = [parts[start : start + _CHAIN] for start in range(0, len(parts), _CHAIN)]
            parts = [_call(_GROWN, nodes.Concat(chunk, lineno=node.lineno)) for chunk in chunks]
        return _call(_GROWN, nodes.Concat(parts, lineno=node.lineno))

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return self._container(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        return self._container(node) if node.ctx == "load" else node

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return self._container(node)

    def _container(self, node: AnyExpr) -> nodes.Expr:
        self.generic_visit(node)
        is_plain = all(isinstance(each, (nodes.Const, nodes.Pair)) for each in node.iter_child_nodes())
        return node if is_plain and not isinstance(node, nodes.Dict) else _call(_MADE, node)

    def _in_sum(self, node: nodes.Expr, terms: int = 0) -> nodes.Expr:
        """A sum within a sum that is looked at as a whole."""
        if not isinstance(node, nodes.Add) or terms >= _CHAIN:
            visited: nodes.Expr = self.visit(node)
            return visited
        node.left = self._in_sum(node.left, terms + 1)
        node.right = self._in_sum(node.right, terms + 1)
        return node


def _terms(node: nodes.Node) -> int:
    return 1 + sum(1 for _ in node.find_all(nodes.Add)) if isinstance(node, nodes.Add) else 1


def _call(name: str, value: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno or 1)


def _ticking(node: Any) -> Any:
    """A loop, macro or block that counts each time its body begins, with the fixed text in it."""
    size = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
    line = node.lineno
    node.body = [nodes.ExprStmt(_call(_TICK, nodes.Const(1 + size, lineno=line)), lineno=line), *node.body]
    return node


class _Dictionary:
    """`dict(...)` for templates, without the class's other attributes."""

    def __call__(self, *args: Any, **named: Any) -> dict[Any, Any]:
        return dict(*args, **named)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """As of `dict`."""
        return dict.fromkeys(*args)


class _Namespace(Namespace):
    """`namespace(...)` without names that begin with an underscore, which lead to Python's own."""

    def __init__(*args: Any, **named: Any) -> None:
        self, *given = args
        attributes = dict(*given, **named)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have {name!r}: names must not begin with an underscore")


def _raise_exception(message: Any = "") -> NoReturn:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    if len(form) > _MOST_FORMAT:
        raise TemplateLimitError(f"strftime_now: the format has more than {_MOST_FORMAT} characters")
    return datetime.now().strftime(form)  # noqa: DTZ005 (templates mean the server's own time)


@lru_cache(maxsize=1)
def _environment() -> ChatEnvironment:
    return ChatEnvironment()


def parsed(template: str) -> nodes.Template:
    """The syntax tree of a template. Raises Jinja's errors, and others of Python's for what is too deep or too long."""
    return _environment().parse(template)


@lru_cache(maxsize=_CACHED)
def compiled(template: str) -> Template:
    """A template made ready; the last ones are remembered. Raises Jinja's errors."""
    return _environment().from_string(template)


def render(template: str, variables: dict[str, Any], size: int | None = None) -> str:
    """The text of a template. `size` is that of the variables, where it is known (`size_of`).

    Raises `TemplateLimitError`, and whatever else the template raises.
    """
    made = compiled(template)
    context = made.new_context(variables)
    assert isinstance(context, BudgetContext)
    context.budget = Budget(size_of(variables) if size is None else size)
    return "".join(made.root_render_func(context))
