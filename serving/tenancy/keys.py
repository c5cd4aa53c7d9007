"""API keys, as digests: the keys themselves are not kept."""

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

from jaxllm.owner import Owner


@dataclass(frozen=True)
class Key:
    """A key that the server knows. digest: SHA-256 of its bytes."""

    digest: bytes
    owner: Owner


class KeyRing:
    """The keys that open the server. With none, it is open to everybody."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self._keys = {key.digest: key for key in keys}

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, given: bytes) -> Key | None:
        """The key that these bytes are, or None.

        The time it takes tells nothing of the keys: only digests are looked up and compared.
        """
        digest = digest_of(given)
        key = self._keys.get(digest)
        return key if key is not None and hmac.compare_digest(key.digest, digest) else None


def plain_key(key: str) -> Key:
    """A key given as it is, which is an owner by itself."""
    return hashed_key(digest_of(key.encode(errors="surrogateescape")))


def hashed_key(digest: bytes, name: str | None = None, weight: float = 1.0) -> Key:
    """A key given by its digest; all keys of one `name` are one owner."""
    # Not the digest itself: that would be enough to guess keys by, wherever an owner is shown.
    shown = f"name:{name}" if name is not None else f"key:{hashlib.sha256(b'owner' + digest).hexdigest()[:16]}"
    return Key(digest, Owner(shown, weight))


def digest_of(key: bytes) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key).digest()
