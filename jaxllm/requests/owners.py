"""Who a request belongs to."""

import msgspec


class Owner(msgspec.Struct, frozen=True):
    """Whose a request is: what is fair is fair between owners, and what is kept is theirs alone.

    `name` tells owners apart; it is never a key itself. An owner of twice the `weight` may use twice as much.
    """

    name: str = ""
    weight: float = 1.0


NOBODY = Owner()
"""Owner of requests that all have the same owner, as in a script."""
