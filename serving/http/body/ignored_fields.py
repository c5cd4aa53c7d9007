"""What a request asks for and does not get: named in a header of its response, and once in the log."""

import logging
import re
from functools import lru_cache

from jaxllm.errors import nearest
from jaxllm.serving.http.body.base import Body
from jaxllm.serving.http.body.foreign import FOREIGN
from jaxllm.serving.http.errors import BodyError

logger = logging.getLogger(__name__)

IGNORED = "jaxllm.ignored_fields"
"""Name in the scope of a request: its `IgnoredFields`."""
IGNORED_HEADER = "X-Ignored-Fields"

_MOST_NAMES = 64
"""Most different unknown fields of one request: each is compared with all known ones."""
_MOST_LOGGED = 256
_LONGEST_NAME = 64
_LONGEST_HEADER = 1024
_TYPO = 0.75
"""How alike an unknown field is to a known one, of which it is taken to be a misspelling; 1 is equal."""


class FieldPolicy:
    """Whether fields that are unknown, or not served and not essential, are ignored or rejected."""

    def __init__(self, *, strict: bool) -> None:
        """`strict`: they are refused."""
        self.strict = strict
        self._logged: set[str] = set()

    def log(self, name: str) -> None:
        """Say in the log, once, that a field is ignored. Only so many names are logged: clients choose them."""
        if name in self._logged or len(self._logged) >= _MOST_LOGGED:
            return
        self._logged.add(name)
        logger.warning("requests have the field %s, which is ignored (--strict-fields refuses it)", name)


class IgnoredFields:
    """The fields of one request that are ignored."""

    def __init__(self, policy: FieldPolicy) -> None:
        self.strict = policy.strict
        """Whether nothing may be ignored."""
        self._policy = policy
        self._names: dict[str, None] = {}
        self._unknown: set[tuple[type[Body], str]] = set()

    def add(self, place: str) -> None:
        """Ignore what stands at a place such as `messages[0].name`."""
        name = _shown(re.sub(r"\[\d+\]", "", place))
        if name not in self._names:
            self._names[name] = None
            self._policy.log(name)

    def add_unknown(self, kind: type[Body], name: str, path: str) -> None:
        """Ignore a field that `kind` does not have, at `path`. Raises `BodyError` where it looks like a misspelling."""
        if (kind, name) in self._unknown:
            return
        place = f"{path}.{name}" if path else name
        if len(self._unknown) == _MOST_NAMES:
            raise BodyError(f"more than {_MOST_NAMES} unknown fields, {_shown(place)!r} among them",
                            _shown(place), "unknown_parameter")  # fmt: skip
        self._unknown.add((kind, name))
        self.refuse_typo(name, kind.__struct_fields__, "unknown field", place)
        self.add(place)

    def refuse_typo(self, name: str, known: tuple[str, ...], what: str, place: str) -> None:
        """Raise `BodyError` for a name that is close to a known one."""
        if name in FOREIGN or len(name) > _LONGEST_NAME:
            return
        hint = _typo(name, known)
        if hint:
            raise BodyError(f"{what} {place!r}{hint}", place, "unknown_parameter")

    def header(self) -> str | None:
        """The value of a header that names them, if there are any."""
        text = ", ".join(self._names)
        return (text if len(text) <= _LONGEST_HEADER else f"{text[: _LONGEST_HEADER - 5]}, ...") or None


@lru_cache(maxsize=1024)
def _typo(name: str, known: tuple[str, ...]) -> str:
    """Clients send the same fields with every request, and to compare them takes a millisecond."""
    return nearest(name, known, alike=_TYPO)


def _shown(name: str) -> str:
    """A name that a client chose, short and of printable ASCII."""
    text = re.sub(r"[^\x21-\x2b\x2d-\x7e]", "?", name[: _LONGEST_NAME + 1])
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 3]}..."
