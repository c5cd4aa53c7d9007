"""What the prefix cache gains and loses, noted for those who watch it from outside.

Nobody notes anything unless `KVManager.record` is called.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from hashlib import blake2b, sha256
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np

from jaxllm.kv.pages import Int32Array
from jaxllm.requests.media import PromptMedia
from jaxllm.requests.request import Request

Key = str | tuple[str, int]
"""A name or digest, or the digest of an image and where in the page it begins."""
PageKeys = tuple[Key, ...] | None
"""What a page depends on besides its token ids and the pages before it."""

Medium = Literal["GPU", "CPU", "STORAGE"]
"""Where pages are found, by vLLM's names: the memory that steps compute in, the host's, and files."""

_MARK_BYTES = 16


class About(NamedTuple):
    """What a page is made of, see `Stored`."""

    parent: bytes | None
    token_ids: Int32Array
    adapter: tuple[int, str] | None
    keys: list[PageKeys] | None


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
    medium: Medium = "GPU"


class Removed(NamedTuple):
    """Pages of a table cannot be found any more."""

    table: int
    digests: list[bytes]
    medium: Medium = "GPU"


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
        self._about: dict[bytes, tuple[int, About]] | None = None  # with in how many tables each digest is
        self._files: set[tuple[int, bytes]] = set()

    def remember(self) -> None:
        """Know from now on what the pages that can be found are made of, for events of their copies."""
        self._about = {}

    def about(self, digest: bytes) -> About | None:
        """What a page that can be found is made of; None where that is not known."""
        return None if self._about is None or digest not in self._about else self._about[digest][1]

    def describe(self, request: Request) -> Callable[[int], About]:
        """Says what a request's page of a number is made of."""
        tokens, size = np.concatenate([request.prompt_token_ids, request.output_token_ids]).astype(np.int32), self._size

        def about(number: int) -> About:
            found = self._run(request, range(number, number + 1), tokens[number * size : (number + 1) * size], 0)
            return About(found.parent, found.token_ids, found.adapter, found.keys)

        return about

    def take(self) -> list[Event]:
        """The events since the last call."""
        found, self.pending = self.pending, []
        return found

    def stored(self, request: Request, first: int, token_ids: Int32Array, table: int, new: Collection[int]) -> None:
        """Of a request's pages from number `first` on, with these ids, those of the numbers `new` can be found.

        Digests of all are known.
        """
        size = self._size
        for pages in _runs(sorted(new), request.adapter_start // size if request.adapter_start else 0):
            begin = (pages.start - first) * size
            # A copy: the row is another request's before this is read.
            own = token_ids[begin : begin + len(pages) * size].copy()
            self.pending.append(self._run(request, pages, own, table))
            self._remember(self.pending[-1])

    def _run(self, request: Request, pages: range, token_ids: Int32Array, table: int) -> Stored:
        digests, lora = request.page_hashes, request.lora_request
        has_adapter = lora is not None and pages.start >= request.adapter_start // self._size
        return Stored(
            table,
            digests[pages.start : pages.stop],
            digests[pages.start - 1] if pages.start else None,
            token_ids,
            (lora.lora_int_id, lora.lora_name) if lora is not None and has_adapter else None,
            self._keys(request, pages, has_adapter=has_adapter),
        )

    def _remember(self, event: Event) -> None:
        if self._about is None or not isinstance(event, Stored):
            return
        parent = event.parent
        for number, digest in enumerate(event.digests):
            count, about = self._about.get(digest, (0, None))
            if about is None:
                tokens = event.token_ids[number * self._size : (number + 1) * self._size]
                keys = None if event.keys is None or event.keys[number] is None else [event.keys[number]]
                about = About(parent, tokens, event.adapter, keys)
            self._about[digest] = (count + 1, about)
            parent = digest

    def _forget(self, digests: Iterable[bytes]) -> None:
        if self._about is None:
            return
        for digest in digests:
            count, about = self._about.pop(digest, (0, None))
            if about is not None and count > 1:
                self._about[digest] = (count - 1, about)

    def copied(self, medium: Medium, part: int, digest: bytes, about: About | None) -> None:
        """There is a copy of what table number `part` has of a digest; states have the number after the last one."""
        if medium == "STORAGE":
            if (part, digest) in self._files:
                return
            self._files.add((part, digest))
        parent, token_ids, adapter, keys = about or About(None, np.zeros(0, np.int32), None, None)
        self.pending.append(Stored(part, [digest], parent, token_ids, adapter, keys, medium))

    def copy_gone(self, medium: Medium, part: int, digest: bytes) -> None:
        """There is no such copy any more. Of files, only those that were told of are."""
        if medium == "STORAGE":
            if (part, digest) not in self._files:
                return
            self._files.discard((part, digest))
        self.pending.append(Removed(part, [digest], medium))

    def removed(self, table: int, digests: list[bytes]) -> None:
        """Pages of a table are about to be overwritten, if any."""
        if digests:
            self._forget(digests)
            self.pending.append(Removed(table, digests))

    def cleared(self) -> None:
        """The cache has forgotten everything, and so have those that were told of files."""
        self._files.clear()
        if self._about is not None:
            self._about.clear()
        self.pending.append(Cleared())

    def state_stored(self, digest: bytes) -> None:
        """There is a snapshot of the states after this page."""
        self.pending.append(Stored(self._states, [digest], None, np.zeros(0, np.int32)))

    def state_removed(self, digest: bytes) -> None:
        """It is about to be overwritten."""
        self.pending.append(Removed(self._states, [digest]))

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
