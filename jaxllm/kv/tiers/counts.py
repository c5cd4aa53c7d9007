"""What the tiers of copies have done so far."""

import msgspec


class OffloadCounts(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Totals since the start, and the share of the host's memory for pages that is used (`usage`, 0 to 1).

    `queries` and `hits`: prompt tokens that were looked up and found on the host. Bytes that were loaded and stored,
    and the seconds that threads took for it, together with waiting for the devices. `failures`: loads that did not
    bring everything, so that it was computed. `dropped`: pages and states not copied, as copying was behind.

    Of files: `disk_queries` and `disk_hits` are pages and states that were looked up and came; bytes and seconds are as
    above; `disk_read_failures` are files that could not be read and requests that waited too long,
    `disk_write_failures` times that files could not be written, and `disk_dropped` copies that were not; `disk_usage`
    is the share of the folder's limit that is used.
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
    disk_queries: int = 0
    disk_hits: int = 0
    disk_read_bytes: int = 0
    disk_read_seconds: float = 0.0
    disk_write_bytes: int = 0
    disk_write_seconds: float = 0.0
    disk_read_failures: int = 0
    disk_write_failures: int = 0
    disk_dropped: int = 0
    disk_usage: float = 0.0

    def plus(self, other: "OffloadCounts") -> "OffloadCounts":
        """Both together; of shares the larger one."""
        mine, others = msgspec.structs.asdict(self), msgspec.structs.asdict(other)
        shares = {name: max(mine[name], others[name]) for name in ("usage", "disk_usage")}
        return OffloadCounts(**{name: value + others[name] for name, value in mine.items()} | shares)


NO_OFFLOAD = OffloadCounts()
