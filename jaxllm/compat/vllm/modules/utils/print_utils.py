"""Vectors, for people."""

from collections.abc import Sequence

__all__ = ["print_embeddings"]

_SHOWN = 4


def print_embeddings(embeds: Sequence[float], prefix: str = "Embeddings") -> None:
    """Print the first numbers of a vector, and how many there are."""
    shown = ", ".join(map(str, embeds[:_SHOWN]))
    more = ", ..." if len(embeds) > _SHOWN else ""
    print(f"{prefix}: [{shown}{more}] (size={len(embeds)})")
