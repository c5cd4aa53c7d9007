"""What the host tier has done so far."""

import msgspec


class OffloadCounts(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Totals since the start, and the share of the host's memory for pages that is used (`usage`, 0 to 1).

    `queries` and `hits`: prompt tokens that were looked up and found on the host. Bytes that were loaded and stored,
    and the seconds that threads took for it, together with waiting for the devices. `failures`: loads that did not
    bring everything, so that it was computed. `dropped`: pages and states not copied, as copying was behind.
    """

    queries: int = 0
    hits: int = 0
    load_bytes: int = 0
    load_seconds: float = 0.0
    store_bytes: int = 0
    store_seconds: float = 0.0
    failures: int = 0
    dropped: int = 0
    usage: float = 0.0

    def plus(self, other: "OffloadCounts") -> "OffloadCounts":
        """Both together; `usage` is the larger one."""
        mine, others = msgspec.structs.asdict(self), msgspec.structs.asdict(other)
        usage = max(self.usage, other.usage)
        return OffloadCounts(**{name: value + others[name] for name, value in mine.items()} | {"usage": usage})


NO_OFFLOAD = OffloadCounts()
