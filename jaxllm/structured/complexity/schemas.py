"""How deep a JSON schema goes, along its references as well, and its regular expressions."""

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote

from jaxllm.structured.complexity.heights import heights
from jaxllm.structured.complexity.regexes import measure_regex

_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_NAMES: Final = ("$anchor", "$dynamicAnchor", "$id", "id")


class Schema:
    """A JSON schema, as decoded."""

    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._containers: dict[int, Any] = {}
        self._named: dict[str, Any] = {}
        self.longest = 0
        """The most optional parts in a row of its regular expressions."""
        self._collect(schema)

    def _collect(self, schema: Any) -> None:
        """Without recursion: it may be deeper than Python's stack."""
        waiting = [schema]
        while waiting:
            item = waiting.pop()
            if id(item) in self._containers or not isinstance(item, (dict, list, tuple)):
                continue
            self._containers[id(item)] = item
            if not isinstance(item, dict):
                waiting += item
                continue
            waiting += item.values()
            for name in _NAMES:
                if isinstance(item.get(name), str):
                    self._named.setdefault(item[name].rpartition("#")[2] or item[name], item)
            patterns = [item.get("pattern")]
            if isinstance(item.get("patternProperties"), dict):
                patterns += item["patternProperties"]
            for pattern in patterns:
                if isinstance(pattern, str):
                    self.longest = max(self.longest, measure_regex(pattern).longest)

    def levels(self) -> int:
        """The most objects and lists inside one another, where a reference leads into what it refers to."""
        if id(self._root) not in self._containers:
            return 0
        return 1 + heights(id(self._root), self._below)[id(self._root)]

    def _below(self, key: int) -> Iterator[tuple[int, int]]:
        item = self._containers[key]
        if isinstance(item, dict):
            for name in _REFERENCES:
                target = self._target(item.get(name))
                if target is not None:
                    yield id(target), 1
        for child in item.values() if isinstance(item, dict) else item:
            if id(child) in self._containers:
                yield id(child), 1

    def _target(self, reference: Any) -> Any:
        """The object that a reference leads to; None for one that leads nowhere, or is none."""
        if not isinstance(reference, str):
            return None
        address, _, fragment = reference.partition("#")
        found = self._named.get(address) if address else self._root
        if not fragment:
            target = found
        elif fragment.startswith("/"):
            target = _at(found, unquote(fragment))
        else:
            target = self._named.get(fragment)
        return target if id(target) in self._containers else None


def _at(item: Any, pointer: str) -> Any:
    """The target of a JSON pointer."""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(item, dict):
            item = item.get(name)
        elif isinstance(item, (list, tuple)) and name.isdecimal() and len(name) < 9 and int(name) < len(item):
            item = item[int(name)]
        else:
            return None
    return item
