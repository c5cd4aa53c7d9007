"""Whom the server lets in."""

from collections.abc import Sequence

from jaxllm.serving.options import ServerOptions
from jaxllm.serving.tenancy.keys import Key, KeyRing, plain_key


class Access:
    """The keys of the server, from its options."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._ring = KeyRing(map(plain_key, keys))

    @classmethod
    def of(cls, options: ServerOptions) -> "Access":
        """As the options say."""
        return cls(options.api_key)

    @property
    def needs_key(self) -> bool:
        """Whether requests must bring a key."""
        return len(self._ring) > 0

    def find(self, given: bytes) -> Key | None:
        """The key that a request brings, or None if it is unknown."""
        return self._ring.find(given)
