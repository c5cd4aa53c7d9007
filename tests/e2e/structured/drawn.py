"""Schemas and regular expressions drawn by hypothesis, within what the grammar library supports."""

from typing import Any

from hypothesis import strategies as st

NAMES = ("name", "animal", "likes", "age", "a b", "ü", "id", "next", "x_1")

_numbers = st.integers(-1000, 1000)


@st.composite
def _integers(draw: st.DrawFn) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    low = draw(_numbers)
    if draw(st.booleans()):
        schema[draw(st.sampled_from(["minimum", "exclusiveMinimum"]))] = low
    if draw(st.booleans()):
        schema[draw(st.sampled_from(["maximum", "exclusiveMaximum"]))] = low + draw(st.integers(3, 500))
    return schema


@st.composite
def _floats(draw: st.DrawFn) -> dict[str, Any]:
    low = draw(_numbers) / 8
    return {"type": "number", "minimum": low, "maximum": low + draw(st.integers(1, 300)) / 4}


_PATTERNS = ("^[a-z]{2,8}$", "^(cat|dog)s?$", "[0-9]{3}", "^\\d{2}-[A-F]+$", "^.{1,5}$", '^[^"]{3}x$')

_strings = st.one_of(
    st.builds(
        lambda low, more: {"type": "string", "minLength": low, "maxLength": low + more},
        st.integers(0, 4),
        st.integers(0, 12),
    ),
    st.sampled_from(_PATTERNS).map(lambda pattern: {"type": "string", "pattern": pattern}),
    st.sampled_from(["date", "time", "date-time", "ipv4", "uuid", "email", "ipv6", "duration", "hostname"]).map(
        lambda name: {"type": "string", "format": name}
    ),
)
_constants = st.one_of(st.none(), st.booleans(), _numbers, st.text('aü"\\\n☃ {}', max_size=6))
_leaves = st.one_of(
    _strings,
    _integers(),
    _floats(),
    st.sampled_from(
        [
            {"type": "boolean"},
            {"type": "null"},
            {"type": ["integer", "null"]},
            {"type": ["boolean", "string"], "maxLength": 5},
        ]
    ),
    st.lists(_constants, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    _constants.map(lambda value: {"const": value}),
    st.just({"$ref": "#/$defs/leaf"}),
)


@st.composite
def _objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: draw(inner) for name in names},
        "required": draw(st.lists(st.sampled_from(names), unique=True)),
        "additionalProperties": False,
    }
    return schema


@st.composite
def _arrays(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    if draw(st.booleans()):
        items = draw(st.lists(inner, min_size=1, max_size=3))
        return {"type": "array", "prefixItems": items, "items": False, "minItems": draw(st.integers(0, len(items)))}
    low = draw(st.integers(0, 2))
    return {"type": "array", "items": draw(inner), "minItems": low, "maxItems": low + draw(st.integers(0, 2))}


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        _objects(inner),
        _arrays(inner),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    )


_LEAF = {"type": "string", "pattern": "^[a-z]{1,6}$"}
_TREE = {
    "type": "object",
    "properties": {
        "value": {"type": "integer", "minimum": 0, "maximum": 99},
        "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/tree"}]},
    },
    "required": ["value", "next"],
    "additionalProperties": False,
}


@st.composite
def schemas(draw: st.DrawFn) -> dict[str, Any]:
    """A schema of some levels, with definitions; one of them refers to itself."""
    with_tree = st.one_of(_leaves, st.just({"$ref": "#/$defs/tree"}))
    schema = draw(_nested(st.recursive(with_tree, _nested, max_leaves=5)))
    return {**schema, "$defs": {"leaf": _LEAF, "tree": _TREE}}


_atoms = st.one_of(
    st.text("abcxyz -_0189é", min_size=1, max_size=3),
    st.sampled_from(
        [
            "[a-z]",
            "[^a-z\\n]",
            "\\d",
            "\\w",
            "\\s",
            ".",
            "\\.",
            "\\(",
            "[A-F0-9]",
            "(?:ab|cd)",
            "[é☃]",
            "/",
            '"',
            "\\\\",
        ]
    ),
)


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["?", "{2}", "{1,3}", "{0,2}"])).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    )


regexes = st.recursive(_atoms, _larger, max_leaves=6)
"""Regular expressions that Python's `re` understands alike."""
