"""What an engine has fetched from others, and kept for them, so far."""

import msgspec


class TransferCounts(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Totals since the start, and leases at the moment (`leases`).

    Of an engine that fetches: prompts that came (`fetches`), their `tokens` and `bytes`, the `seconds` that anything
    was under way, and fetches that failed, by reason. Of one that others fetch from: bytes that were sent, leases that
    were `granted`, `released` and `expired`, engines that were refused, and messages that were none (`foreign`).
    """

    queries: int = 0
    fetches: int = 0
    tokens: int = 0
    bytes: int = 0
    seconds: float = 0.0
    unreachable: int = 0
    refused: int = 0
    timeout: int = 0
    gone: int = 0
    damaged: int = 0
    no_room: int = 0
    sent_bytes: int = 0
    granted: int = 0
    released: int = 0
    expired: int = 0
    refused_peers: int = 0
    foreign: int = 0
    leases: int = 0

    def plus(self, other: "TransferCounts") -> "TransferCounts":
        """Both together."""
        mine, others = msgspec.structs.asdict(self), msgspec.structs.asdict(other)
        return TransferCounts(**{name: value + others[name] for name, value in mine.items()})


NO_TRANSFER = TransferCounts()
