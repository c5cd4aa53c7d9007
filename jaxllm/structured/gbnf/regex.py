"""Regular parts of a grammar as expressions in the syntax of Rust's `regex`."""

from collections.abc import Mapping

from jaxllm.structured.gbnf.nodes import Alt, Chars, Node, Ref, Repeat, Seq


def regex_of(node: Node, rules: Mapping[str, Node]) -> str:
    """The expression of a regular node, with rules in place of their names."""
    match node:
        case Chars(ranges):
            if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
                return _character(ranges[0][0])
            return f"[{''.join(_range(*each) for each in ranges)}]"
        case Ref(name):
            return regex_of(rules[name], rules)
        case Seq(items):
            return "".join(regex_of(item, rules) for item in items)
        case Alt(items):
            return f"(?:{'|'.join(regex_of(item, rules) for item in items)})"
        case Repeat(item, least, most):
            return f"(?:{regex_of(item, rules)}){times(least, most)}"
        case _:
            raise AssertionError(node)


def times(least: int, most: int | None) -> str:
    """How often something comes, as expressions and Lark write it."""
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most))
    return short or (f"{{{least},{'' if most is None else most}}}")


def _range(first: int, last: int) -> str:
    return _character(first) if first == last else f"{_character(first)}-{_character(last)}"


def _character(code: int) -> str:
    character = chr(code)
    return character if character.isascii() and character.isalnum() else f"\\x{{{code:x}}}"
