"""How much is stored, by all owners and by each."""

from collections import Counter

from jaxllm.errors import QueueFullError, StorageError


class Room:
    """At most `max_files` of together `max_bytes`, of which one owner has at most `share` (from 0 to 1)."""

    def __init__(self, max_files: int, max_bytes: int, share: float) -> None:
        self._max = {"files": max_files, "bytes": max_bytes}
        # A batch has three files; fewer would be of no use.
        self._own = {"files": max(min(3, max_files), int(max_files * share)), "bytes": int(max_bytes * share)}
        self._flags = {"files": "--max-stored-files", "bytes": "--max-stored-file-bytes"}
        self._used: dict[str, Counter[str]] = {"files": Counter(), "bytes": Counter()}
        self._all = Counter({"files": 0, "bytes": 0})

    @property
    def num_bytes(self) -> int:
        """Bytes of all owners."""
        return self._all["bytes"]

    def fits(self, owner: str, kind: str, count: int) -> bool:
        """Whether there is room for so many `files` or `bytes` more."""
        return self._all[kind] + count <= self._max[kind] and self._used[kind][owner] + count <= self._own[kind]

    def take(self, owner: str, kind: str, count: int) -> None:
        """Count so many more. Raises `StorageError` if its owner may not have them, else `QueueFullError`."""
        flag = self._flags[kind]
        if self._used[kind][owner] + count > self._own[kind]:
            raise StorageError(
                f"no room for more files of yours: they may be {self._own[kind]} {kind} together "
                f"(--max-stored-file-share of {flag}); delete some"
            )
        if self._all[kind] + count > self._max[kind]:
            raise QueueFullError(
                f"no room for files: they may be {self._max[kind]} {kind} together ({flag}); delete some", 60.0
            )
        self.add(owner, kind, count)

    def add(self, owner: str, kind: str, count: int) -> None:
        """Count so many more, or fewer if it is negative, whatever the limits."""
        used = self._used[kind]
        used[owner] += count
        self._all[kind] += count
        if not used[owner]:
            del used[owner]
