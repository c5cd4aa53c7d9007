"""Keys, which are known by their digests alone, and the file of `--api-key-file`."""

import hashlib
import hmac
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec

from jaxllm.errors import ConfigError
from jaxllm.requests.owners import Owner
from jaxllm.serving.tenancy.quotas import Quota

_log = logging.getLogger(__name__)

_HASHED = re.compile(r"sha256:([0-9a-fA-F]{64})")
_STRUCTURED = (".yaml", ".yml", ".json")
_OTHERS = 0o077

Text = Annotated[str, msgspec.Meta(min_length=1)]


@dataclass(frozen=True)
class Key:
    """A key that the server knows. digest: SHA-256 of its bytes."""

    digest: bytes
    owner: Owner
    is_operator: bool = False
    """Whether it opens what concerns all clients."""


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


def hashed_key(digest: bytes, name: str | None = None, weight: float = 1.0, *, is_operator: bool = False) -> Key:
    """A key given by its digest; all keys of one `name` are one owner."""
    # Not the digest itself: that would be enough to guess keys by, wherever an owner is shown.
    shown = f"name:{name}" if name is not None else f"key:{hashlib.sha256(b'owner' + digest).hexdigest()[:16]}"
    return Key(digest, Owner(shown, weight), is_operator)


def digest_of(key: bytes) -> bytes:
    """The digest by which the server knows a key."""
    return hashlib.sha256(key).digest()


class _Client(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: Annotated[str, msgspec.Meta(pattern=r"^[!-~]{1,64}$")]
    keys: Annotated[list[Text], msgspec.Meta(min_length=1)]
    operator: bool = False
    weight: Annotated[float, msgspec.Meta(ge=0.01, le=1000)] = 1.0
    requests_per_minute: Annotated[float, msgspec.Meta(gt=0)] | None = None
    tokens_per_minute: Annotated[float, msgspec.Meta(gt=0)] | None = None
    max_concurrent_requests: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def quota(self) -> Quota:
        return Quota(**{name: getattr(self, name) for name in Quota.__struct_fields__})


class _File(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    clients: Annotated[list[_Client], msgspec.Meta(min_length=1)]


@dataclass(frozen=True)
class KeyFile:
    """The contents of the file: keys, and the quotas of owners by name."""

    keys: list[Key]
    quotas: dict[str, Quota] = field(default_factory=dict)


def read_key_file(name: str) -> KeyFile:
    """Read keys: one per line, or clients with keys, weights and quotas in YAML or JSON (by the name's ending).

    A key is itself or `sha256:` and the digest of it, in hexadecimal. Raises `ConfigError` without telling a key.
    """
    path = Path(name)
    try:
        text = path.read_text(encoding="utf-8")
        if path.stat().st_mode & _OTHERS:
            _log.warning("%s contains API keys but users other than its owner can read it: chmod 600", name)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"api_key_file={name!r}: {getattr(error, 'strerror', None) or error}") from None
    return _structured(name, text) if path.suffix in _STRUCTURED else _lines(name, text)


def _lines(name: str, text: str) -> KeyFile:
    lines = [line.strip() for line in text.splitlines()]
    keys = [hashed_key(_digest(name, line)) for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"api_key_file={name!r}: contains no key")
    return KeyFile(keys)


def _structured(name: str, text: str) -> KeyFile:
    try:
        read = msgspec.convert(_parse(text), _File)
    except msgspec.ValidationError as error:
        raise ConfigError(f"api_key_file={name!r}: {error}") from None
    except ValueError:
        # What a parser says of it may quote a key.
        raise ConfigError(f"api_key_file={name!r}: not valid YAML or JSON") from None
    keys: list[Key] = []
    quotas: dict[str, Quota] = {}
    for client in read.clients:
        made = [
            hashed_key(_digest(name, key), client.name, client.weight, is_operator=client.operator)
            for key in client.keys
        ]
        if made[0].owner.name in quotas:
            raise ConfigError(f"api_key_file={name!r}: two clients have the name {client.name!r}")
        quotas[made[0].owner.name] = client.quota()
        keys += made
    if len({key.digest for key in keys}) < len(keys):
        raise ConfigError(f"api_key_file={name!r}: a key occurs twice")
    return KeyFile(keys, quotas)


def _parse(text: str) -> Any:
    # 26 ms before the engine starts, which servers without such a file do not need.
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError from error


def _digest(name: str, key: str) -> bytes:
    if not key.startswith("sha256:"):
        return digest_of(key.encode())
    found = _HASHED.fullmatch(key)
    if found is None:
        raise ConfigError(f"api_key_file={name!r}: sha256: must be followed by 64 hexadecimal digits")
    return bytes.fromhex(found[1])
