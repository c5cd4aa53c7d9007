"""Prefix cache: full pages found again by a hash of everything that leads to their last token.

The digest of a page is sha256(digest of the page before + its int32 token ids), and the chain starts from the
request's `cache_salt`, the version of the weights and the content of its adapter. Where embeddings stand in place of
tokens, their digest follows the ids. An adapter that starts at an invocation (aLoRA) is no part of the root: it
follows the ids of the first page that has it, so that pages before that are shared with the model. Equal digests
therefore mean equal inputs from position 0 on, within one salt.
Each page table of a request has pages of its own after the same digests.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Container, Iterable, Sequence
from hashlib import sha256
from typing import Protocol

import numpy as np

from jaxllm.kv.events import KVEvents
from jaxllm.kv.groups import CacheGroups, TableGroup
from jaxllm.kv.pages import NULL_PAGE, Int32Array
from jaxllm.kv.snapshots import SnapshotPool
from jaxllm.requests.request import Request

_UNSALTED = bytes(32)


def root_digest(cache_salt: str | None, version: int = 0, adapter: bytes = b"") -> bytes:
    """Where the chain of a request starts: with another salt, other weights or adapters (32 bytes) none is shared."""
    root = _UNSALTED if cache_salt is None else sha256(cache_salt.encode("utf-8", "surrogatepass")).digest()
    if adapter:
        root = sha256(root + adapter).digest()
    return sha256(root + version.to_bytes(8, "little")).digest() if version else root


def extend_digests(
    digests: list[bytes],
    token_ids: Int32Array,
    block_size: int,
    root: bytes,
    request: Request | None = None,
) -> None:
    """Append the digests of the full pages of `token_ids` (int32 [T], from position 0) that `digests` lacks.

    `root` is `root_digest` of the `request`, which may have more than token ids in its pages.
    """
    first, last = len(digests), len(token_ids) // block_size
    if first >= last:
        return
    parent = digests[-1] if digests else root
    data = np.asarray(token_ids[first * block_size : last * block_size], np.int32).tobytes()
    stride = 4 * block_size
    has_keys = request is not None and (request.prompt_embeds or request.media or request.adapter_start)
    for offset in range(0, len(data), stride):
        # Nearly all pages have token ids alone: they need no call.
        key = page_key(request, len(digests), block_size) if has_keys and request is not None else b""
        parent = sha256(parent + data[offset : offset + stride] + key).digest()
        digests.append(parent)


def page_key(request: Request, page: int, block_size: int) -> bytes:
    """What tells a request's page of this number from others with the same token ids and the same page before."""
    others = request.in_place_of_tokens
    key = b"" if others is None else others.page_key(page)
    start = request.adapter_start
    if start and start // block_size == page:
        key += start.to_bytes(4, "little") + request.adapter_digest
    return key


def extend_digest(digests: list[bytes], data: bytes, root: bytes) -> None:
    """Append the digest of one more page, whose token ids are `data`, as int32, and what `extend_digests` adds."""
    parent = digests[-1] if digests else root
    digests.append(sha256(parent + data).digest())


class PrefixCache:
    """For each page table of a request, a one-to-one map between digests and the pages that hold their contents."""

    def __init__(self, num_tables: int = 1, num_remembered: int = 0) -> None:
        """So many digests are `remembered` after their pages are gone, where no table keeps all pages of a request."""
        self._page_of: list[dict[bytes, int]] = [{} for _ in range(num_tables)]
        self._digest_of: list[dict[int, bytes]] = [{} for _ in range(num_tables)]
        self._remembered: OrderedDict[bytes, None] = OrderedDict()  # the oldest first
        self._num_remembered = num_remembered
        self.events: KVEvents | None = None
        """Where it is noted what can be found no more, if anywhere."""

    def __len__(self) -> int:
        return sum(map(len, self._page_of))

    def find(self, digests: list[bytes], limit: int) -> list[int]:
        """The first table's pages of the longest cached run of `digests` from the first one on, at most `limit`."""
        pages: list[int] = []
        for digest in digests[:limit]:
            page = self._page_of[0].get(digest)
            if page is None:
                break
            pages.append(page)
        return pages

    def find_for(self, digests: list[bytes], groups: CacheGroups, snapshots: SnapshotPool | None = None) -> Int32Array:
        """The pages that a request with these digests can begin with, int32 [tables, pages].

        As many as possible such that every table has all that tokens after them see: in a table of layers with
        windows, pages before that are `NULL_PAGE`. With `snapshots`, one is after the last of them.
        """
        if groups.windows == (0,):
            found = self.find(digests, len(digests))
            if snapshots is not None:
                found = found[: snapshots.longest(digests[: len(found)])]
            return np.array([found], np.int32)
        count = longest_prefix(digests, groups, self._page_of, None if snapshots is None else snapshots.longest)
        pages = np.full((groups.num_tables, count), NULL_PAGE, np.int32)
        for group in groups.all:
            begin = groups.begin(group, count * groups.page_size)
            for table in group.tables:
                pages[table, begin:] = [self._page_of[table][digest] for digest in digests[begin:count]]
        return pages

    def num_shared(self, digests: Sequence[bytes], groups: CacheGroups) -> int:
        """How many of these pages a request has in common with others, as far as that is still known.

        Whether or not it can begin with them: tables without windows have them.
        """
        if 0 in groups.windows:
            return _longest_whole(digests, groups, self._page_of)
        known = (place for place in range(len(digests), 0, -1) if digests[place - 1] in self._remembered)
        return next(known, 0)

    def pages_of(self, digests: Iterable[bytes], table: int) -> list[int]:
        """The pages of a table that hold what these digests stand for, where there are any."""
        found = map(self._page_of[table].get, digests)
        return [page for page in found if page is not None]

    def remember(self, digests: Iterable[bytes]) -> None:
        """Let `num_shared` know these digests for a while, where no table keeps all pages of a request."""
        if not self._num_remembered:
            return
        for digest in digests:
            self._remembered[digest] = None
            self._remembered.move_to_end(digest)
        while len(self._remembered) > self._num_remembered:
            self._remembered.popitem(last=False)

    def insert(self, digest: bytes, page: int, table: int = 0) -> bool:
        """Let `page` be found by `digest`, unless another page is already: then the old one stays. True if inserted."""
        if self._page_of[table].setdefault(digest, page) != page:
            return False
        self._digest_of[table][page] = digest
        return True

    def insert_each(self, digests: list[bytes], pages: Int32Array) -> list[list[int]]:
        """`insert` a page for every table and digest, int32 [n, tables]. Returns for each table those inserted."""
        inserted: list[list[int]] = []
        distinct = len(set(digests)) == len(digests)
        for table, (page_of, digest_of) in enumerate(zip(self._page_of, self._digest_of, strict=True)):
            own: list[int] = pages[:, table].tolist()
            if distinct and page_of.keys().isdisjoint(digests):  # what is usual, without a call for each
                page_of.update(zip(digests, own, strict=True))
                digest_of.update(zip(own, digests, strict=True))
                inserted.append(own)
            else:
                pairs = zip(digests, own, strict=True)
                inserted.append([page for digest, page in pairs if self.insert(digest, page, table)])
        return inserted

    def where(self, page: int) -> tuple[int, bytes] | None:
        """The table and digest that a page is found by; None where it cannot be found."""
        each = ((table, pages.get(page)) for table, pages in enumerate(self._digest_of))
        return next(((table, digest) for table, digest in each if digest is not None), None)

    def known(self, table: int, others: "Copies") -> Container[bytes]:
        """The digests that a table has, or that have a copy of this table's page in `others`."""
        return _Known(self._page_of[table], others, table)

    def absent(self, pages: Int32Array) -> list[set[int]]:
        """For each table, which of these pages, int32 [n, tables], hold nothing that can be found."""
        owned = zip(pages.T.tolist(), self._digest_of, strict=True)
        return [{page for page in own if page not in digest_of} for own, digest_of in owned]

    def holds(self, digest: bytes, page: int, table: int) -> bool:
        """Whether that page of the table is what is found by the digest."""
        return self._page_of[table].get(digest) == page

    def forget(self, pages: Collection[int]) -> None:
        """Drop these pages, whose contents are about to be overwritten."""
        if self.events is not None:
            for table, digest_of in enumerate(self._digest_of):
                self.events.removed(table, [digest_of[page] for page in pages if page in digest_of])
        for page in pages:
            for page_of, digest_of in zip(self._page_of, self._digest_of, strict=True):
                digest = digest_of.pop(page, None)
                if digest is not None:
                    del page_of[digest]
                    break
            else:
                raise KeyError(page)

    def clear(self) -> None:
        """Drop everything."""
        if self.events is not None:
            self.events.cleared()
        for page_of, digest_of in zip(self._page_of, self._digest_of, strict=True):
            page_of.clear()
            digest_of.clear()
        self._remembered.clear()

    def check_integrity(self, retained_pages: set[int]) -> None:
        """Assert that the maps mirror each other, share no page, and cover exactly `retained_pages`."""
        for page_of, digest_of in zip(self._page_of, self._digest_of, strict=True):
            assert {page: digest for digest, page in page_of.items()} == digest_of
        assert len(self) == len(retained_pages)
        assert {page for each in self._digest_of for page in each} == retained_pages


class Copies(Protocol):
    """What else has contents of pages."""

    def has(self, digest: bytes, part: int) -> bool:
        """Whether it has what the page table number `part` has of a digest."""
        ...


class _Known:
    def __init__(self, pages: Container[bytes], others: Copies, table: int) -> None:
        self._pages, self._others, self._table = pages, others, table

    def __contains__(self, digest: object) -> bool:
        return isinstance(digest, bytes) and (digest in self._pages or self._others.has(digest, self._table))


def longest_prefix(
    digests: Sequence[bytes],
    groups: CacheGroups,
    tables: Sequence[Container[bytes]],
    longest_state: Callable[[Sequence[bytes]], int] | None = None,
) -> int:
    """How many of these pages a request can begin with, such that every table has all that tokens after them see.

    `tables` are the digests that each has. `longest_state` says how many of some digests lead to a state that is kept.
    """
    count, before = _longest_whole(digests, groups, tables), -1
    while count != before:
        before = count
        if longest_state is not None:
            count = longest_state(digests[:count])
        for group in groups.all:
            count = _longest(digests[:count], group, groups, tables) if group.window else count
    return count


def _longest_whole(digests: Sequence[bytes], groups: CacheGroups, tables: Sequence[Container[bytes]]) -> int:
    """How many of these pages, from the first on, all tables without windows have."""
    whole = [tables[table] for group in groups.all if not group.window for table in group.tables]
    places = (place for place, digest in enumerate(digests) if any(digest not in pages for pages in whole))
    return next(places, len(digests))


def _longest(
    digests: Sequence[bytes], group: TableGroup, groups: CacheGroups, tables: Sequence[Container[bytes]]
) -> int:
    """Most pages, at most as many as digests, after which a token finds all that it sees in tables of a group."""
    own = [tables[table] for table in group.tables]
    # From the end on: how many pages lie side by side after the one that is looked at.
    end = place = len(digests)
    while place > groups.begin(group, end * groups.page_size):
        place -= 1
        if any(digests[place] not in pages for pages in own):
            end = place
    return end
