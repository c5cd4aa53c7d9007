"""Prefix cache: full pages found again by a hash of everything that leads to their last token.

The digest of a page is sha256(digest of the page before + its int32 token ids), and the chain starts from the
request's `cache_salt`. Equal digests therefore mean equal token ids from position 0 on, within one salt.
"""

from collections.abc import Iterable
from hashlib import sha256

import numpy as np

from jaxllm.kv.pages import Int32Array

_UNSALTED = bytes(32)


def root_digest(cache_salt: str | None) -> bytes:
    """Where the chain of a request starts: requests with different salts never share a page."""
    return _UNSALTED if cache_salt is None else sha256(cache_salt.encode("utf-8", "surrogatepass")).digest()


def extend_digests(digests: list[bytes], token_ids: Int32Array, block_size: int, cache_salt: str | None) -> None:
    """Append the digests of the full pages of `token_ids` (int32 [T], from position 0) that `digests` lacks."""
    first, last = len(digests), len(token_ids) // block_size
    if first >= last:
        return
    parent = digests[-1] if digests else root_digest(cache_salt)
    data = np.asarray(token_ids[first * block_size : last * block_size], np.int32).tobytes()
    stride = 4 * block_size
    for offset in range(0, len(data), stride):
        parent = sha256(parent + data[offset : offset + stride]).digest()
        digests.append(parent)


class PrefixCache:
    """A one-to-one map between digests and the pages that hold their contents."""

    def __init__(self) -> None:
        self._page_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._page_of)

    def find(self, digests: list[bytes], limit: int) -> list[int]:
        """The pages of the longest cached run of `digests` from the first one on, at most `limit` of them."""
        pages: list[int] = []
        for digest in digests[:limit]:
            page = self._page_of.get(digest)
            if page is None:
                break
            pages.append(page)
        return pages

    def insert(self, digest: bytes, page: int) -> bool:
        """Let `page` be found by `digest`, unless another page is already: then the old one stays. True if inserted."""
        if self._page_of.setdefault(digest, page) != page:
            return False
        self._digest_of[page] = digest
        return True

    def forget(self, pages: Iterable[int]) -> None:
        """Drop these pages, whose contents are about to be overwritten."""
        for page in pages:
            del self._page_of[self._digest_of.pop(page)]

    def clear(self) -> None:
        """Drop everything."""
        self._page_of.clear()
        self._digest_of.clear()

    def check_integrity(self, kept_pages: set[int]) -> None:
        """Assert that the two maps mirror each other and cover exactly `kept_pages`."""
        assert {page: digest for digest, page in self._page_of.items()} == self._digest_of
        assert set(self._digest_of) == kept_pages
