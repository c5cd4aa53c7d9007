"""What the prefix cache gains and loses, noted for those who watch it from outside.

Nobody notes anything unless `KVManager.record` is called.
"""

import os
from collections.abc import Collection, Iterable, Iterator
from hashlib import blake2b, sha256
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from jaxllm.kv.pages import Int32Array
from jaxllm.requests.media import PromptMedia
from jaxllm.requests.request import Request

Key = str | tuple[str, int]
"""A name or digest, or the digest of an image and where in the page it begins."""
PageKeys = tuple[Key, ...] | None
"""What a page depends on besides its token ids and the pages before it."""

_MARK_BYTES = 16


class Stored(NamedTuple):
    """Neighbouring pages of one request can be found in a table from now on.

    `digests` has one for each page and `parent` that of the page before them, None at the beginning. `token_ids` is
    int32 [pages * block_size], empty for the snapshot of a state. `adapter` has the number and name of the adapter that
    they were computed with. `keys` has what each page depends on besides, None where that is nothing for all of them.
    """

    table: int
    digests: list[bytes]
    parent: bytes | None
    token_ids: Int32Array
    adapter: tuple[int, str] | None = None
    keys: list[PageKeys] | None = None


class Removed(NamedTuple):
    """Pages of a table cannot be found any more."""

    table: int
    digests: list[bytes]


class Cleared(NamedTuple):
    """Nothing can be found any more."""


Event = Stored | Removed | Cleared


class KVEvents:
    """The events since the last `take`, in order. Snapshots of states have a table of their own, after the others.

    Texts of salts stay here: a page has a keyed digest of its salt, with which nobody outside can try texts.
    """

    def __init__(self, block_size: int, num_tables: int = 1) -> None:
        """`block_size` is the tokens in a page."""
        self.pending: list[Event] = []
        self._size, self._states = block_size, num_tables
        self._secret = os.urandom(32)

    def take(self) -> list[Event]:
        """The events since the last call."""
        found, self.pending = self.pending, []
        return found

    def stored(self, request: Request, first: int, token_ids: Int32Array, table: int, new: Collection[int]) -> None:
        """Of a request's pages from number `first` on, with these ids, those of the numbers `new` can be found.

        Digests of all are known.
        """
        digests, size = request.page_hashes, self._size
        for pages in _runs(sorted(new), request.adapter_start // size if request.adapter_start else 0):
            has_adapter = request.lora_request is not None and pages.start >= request.adapter_start // size
            begin = (pages.start - first) * size
            self.pending.append(
                Stored(
                    table,
                    digests[pages.start : pages.stop],
                    digests[pages.start - 1] if pages.start else None,
                    # A copy: the row is another request's before this is read.
                    token_ids[begin : begin + len(pages) * size].copy(),
                    (request.lora_request.lora_int_id, request.lora_request.lora_name)
                    if request.lora_request is not None and has_adapter
                    else None,
                    self._keys(request, pages, has_adapter=has_adapter),
                )
            )

    def removed(self, table: int, digests: list[bytes]) -> None:
        """Pages of a table are about to be overwritten, if any."""
        if digests:
            self.pending.append(Removed(table, digests))

    def cleared(self) -> None:
        """The cache has forgotten everything."""
        self.pending.append(Cleared())

    def state_stored(self, digest: bytes) -> None:
        """There is a snapshot of the states after this page."""
        self.pending.append(Stored(self._states, [digest], None, np.zeros(0, np.int32)))

    def state_removed(self, digest: bytes) -> None:
        """It is about to be overwritten."""
        self.removed(self._states, [digest])

    def _keys(self, request: Request, pages: range, *, has_adapter: bool) -> list[PageKeys] | None:
        if not has_adapter and request.in_place_of_tokens is None and request.cache_salt is None:
            return None
        name = () if request.lora_request is None or not has_adapter else (request.lora_request.lora_name,)
        keys = [(*name, *self._content(request, page), *self._salt(request, page)) for page in pages]
        return [key or None for key in keys] if any(keys) else None

    def _content(self, request: Request, page: int) -> Iterable[Key]:
        if request.media is not None and len(request.media.places):
            return media_keys(request.media, page, self._size)
        others = request.in_place_of_tokens
        key = b"" if others is None else others.page_key(page)
        return (sha256(key).hexdigest(),) if key else ()

    def _salt(self, request: Request, page: int) -> tuple[str, ...]:
        if page or request.cache_salt is None:
            return ()
        salt = request.cache_salt.encode("utf-8", "surrogatepass")
        return (blake2b(salt, key=self._secret, digest_size=_MARK_BYTES).hexdigest(),)


def media_keys(media: PromptMedia, page: int, block_size: int) -> list[Key]:
    """The digest of each image with a row in a page, and the place of its first row counted from the page's first."""
    found: list[Key] = []
    begin, end = page * block_size, (page + 1) * block_size
    row = 0
    for item in media.items:
        if item.num_rows:
            first, last = int(media.places[row]), int(media.places[row + item.num_rows - 1])
            row += item.num_rows
            if first < end and last >= begin:
                found.append((item.digest.hex(), first - begin))
    return found


def _runs(numbers: list[int], cut: int) -> Iterator[range]:
    """Ranges of neighbouring numbers, none across `cut`."""
    begins = [now for before, now in pairwise([-2, *numbers]) if now != before + 1 or now == cut]
    ends = [before + 1 for before, now in pairwise([*numbers, -2]) if now != before + 1 or now == cut]
    return map(range, begins, ends)
