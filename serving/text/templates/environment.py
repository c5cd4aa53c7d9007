"""Jinja's environment for chat templates: Hugging Face's names, in a sandbox whose every loop and call is counted.

Counting is compiled in: a tick in each loop, macro and block, and a look at what is written or given a name. Between
two looks a template can do nothing that takes long: sums of texts are short, and what multiplies texts is asked before
(`guards`, `filters`). The looks are filters, which compile to plain calls.
"""

from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NoReturn

from jinja2 import Template, nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from jaxllm.serving.text.templates.budget import Budget, TemplateLimitError, size_of
from jaxllm.serving.text.templates.counting import COMPARED, GROWN, JOINED, MADE, TICK, WRITTEN, with_counting
from jaxllm.serving.text.templates.filters import guarded_filters
from jaxllm.serving.text.templates.guards import check_compared, check_operation, check_value, guarded_call

_MOST_FORMAT: Final = 256
_CACHED: Final = 32


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
            TICK: _tick,
            WRITTEN: _written,
            JOINED: _joined,
            GROWN: _grown,
            MADE: _made,
            COMPARED: _comparable,
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
        counted = with_counting(source)
        counted.set_environment(self)
        return super()._generate(counted, name, filename, defer_init=defer_init)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """The result of an operator that may make much of little."""
        check_operation(_budget(context), operator, left, right)
        return self.binop_table[operator](left, right)

    def call(self, context: Context, called: Any, /, *args: Any, **named: Any) -> Any:
        """The result of a call from a template."""
        budget = _budget(context)
        budget.spend(1)
        found = guarded_call(budget, called, args, named)
        if found is NotImplemented and not isinstance(called, Macro):
            # Jinja's own arguments are values that are there already.
            check_compared(budget, *args, *(named[name] for name in named if name not in ("_loop_vars", "_block_vars")))
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
    """Charge a value that is written to the output."""
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


@pass_context
def _comparable(context: BudgetContext, value: Any) -> Any:
    """An expression that is compared with another value, or is a key."""
    check_compared(context.budget, value)
    return value


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
