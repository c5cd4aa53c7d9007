"""Tokenizers without `transformers`, whose import takes longer than all else that a warm start does.

`transformers` knows how each family's files become a tokenizer. What it made of them is cached as JSON in a folder of
the user's, named by a digest of the files; the next start reads that with `tokenizers` alone. Chat templates need only
the part of `transformers` that renders them, which the first conversation imports.
"""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from jaxllm.models.errors import is_failure
from jaxllm.pallas_kernels.artifact_cache import ArtifactCache
from jaxllm.serving.text.tokenizer import Tokenizer

_FORMAT = "jaxllm tokenizer 4"

LARGEST_CACHE = 256 * 2**20
"""Bytes that all tokenizers may take together: some tens of them."""

_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "tokenizer*", "*/*.jinja")
"""All that a tokenizer may be made from, and some more."""


class SavedTokenizer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `jaxllm.serving.text.tokenizer` needs of a `transformers` tokenizer; `backend` is that of `tokenizers`."""

    backend: str
    eos_token_id: int | None
    chat_template: str | dict[str, str] | None
    special_tokens: dict[str, str]
    """Texts of `bos_token` and such, which templates name."""


class LateTokenizer:
    """Looks like a `transformers` tokenizer, and becomes one when asked for more than is saved."""

    def __init__(self, saved: SavedTokenizer, load: Callable[[], Any]) -> None:
        """`load` makes the `transformers` tokenizer. Raises an exception of `tokenizers` for a broken backend."""
        from tokenizers import Tokenizer as Backend

        self.backend_tokenizer = Backend.from_str(saved.backend)
        self.eos_token_id = saved.eos_token_id
        self.chat_template = saved.chat_template
        self.special_tokens_map = saved.special_tokens
        self._load = load

    @cached_property
    def whole(self) -> Any:
        """The `transformers` tokenizer."""
        return self._load()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.whole, name)


def load_quickly(folder: Path, cache: Path | None = None) -> Tokenizer:
    """The tokenizer in `folder`, without `transformers` if one of the same files was loaded before.

    `cache` is by default that of the user. Raises `ConfigError` like `Tokenizer.load`.
    """
    artifacts, name = ArtifactCache(cache or default_cache(), LARGEST_CACHE), f"{_digest(folder)}.json"
    content = artifacts.get(name)
    if content is not None:
        try:
            saved = msgspec.json.decode(content, type=SavedTokenizer)
            return Tokenizer(LateTokenizer(saved, lambda: Tokenizer.load(folder).hf))
        # A broken backend, for which `tokenizers` has no narrower type.
        except BaseException as error:
            if not is_failure(error):
                raise
            artifacts.discard(name, error)
    found = Tokenizer.load(folder)
    hf = found.hf
    saved = SavedTokenizer(hf.backend_tokenizer.to_str(), hf.eos_token_id, hf.chat_template, hf.special_tokens_map)
    artifacts.put(name, msgspec.json.encode(saved))
    return found


def whole_of(tokenizer: Tokenizer) -> Any:
    """The `transformers` tokenizer, for which a cached one imports all of `transformers`."""
    return tokenizer.hf.whole if isinstance(tokenizer.hf, LateTokenizer) else tokenizer.hf


def prepare_templates(tokenizer: Tokenizer) -> None:
    """Compile what the first conversation needs. What is wrong with a template its requests are told."""
    from jaxllm.serving.text.templates.environment import compiled

    own = tokenizer.hf.chat_template
    for template in own.values() if isinstance(own, dict) else filter(None, [own]):
        with suppress(Exception):
            compiled(template)


def default_cache() -> Path:
    """The user's folder of cached tokenizers."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxllm" / "tokenizers"


def _digest(folder: Path) -> str:
    """Digest of the files that the tokenizer is made from, and of the libraries that make it."""
    versions = [f"{name} {metadata.version(name)}" for name in ("transformers", "tokenizers")]
    digest = hashlib.sha256("\n".join([_FORMAT, *versions]).encode())
    for path in sorted({path for pattern in _FILES for path in folder.glob(pattern) if path.is_file()}):
        content = path.read_bytes()
        digest.update(f"\0{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:32]
