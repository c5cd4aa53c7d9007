"""How much each owner may ask for: token buckets of requests and of tokens, and requests at a time."""

import math
import time
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import msgspec

from jaxllm.errors import QuotaError
from jaxllm.requests.owners import Owner

_MOST_ACCOUNTS = 10_000
_BUSY_SECONDS = 1.0

PerMinute = Annotated[float, msgspec.Meta(gt=0)]


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The limits of one owner; None: no limit."""

    requests_per_minute: PerMinute | None = None
    tokens_per_minute: PerMinute | None = None
    max_concurrent_requests: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def divided(self, count: int) -> "Quota":
        """The share of one of `count` processes that do not know of each other."""
        concurrent = self.max_concurrent_requests
        return Quota(
            requests_per_minute=None if self.requests_per_minute is None else self.requests_per_minute / count,
            tokens_per_minute=None if self.tokens_per_minute is None else self.tokens_per_minute / count,
            max_concurrent_requests=None if concurrent is None else max(1, concurrent // count),
        )


class TokenBucket:
    """Fills evenly, so much in a minute, and holds what comes in one minute."""

    def __init__(self, per_minute: float, clock: Callable[[], float]) -> None:
        # A share of less than one would never let anything through.
        self.size = max(1.0, per_minute)
        self._rate = per_minute / 60
        self._clock = clock
        self._level, self._seen = self.size, clock()

    def seconds_until(self, amount: float) -> float:
        """How long until it holds this, or is full; 0 if it does now."""
        now = self._clock()
        self._level = min(self.size, self._level + (now - self._seen) * self._rate)
        self._seen = now
        return max(0.0, (min(amount, self.size) - self._level) / self._rate)

    def take(self, amount: float) -> None:
        """Take something out, or put it back if it is negative."""
        self._level = min(self.size, self._level - amount)


class Account:
    """The rest of one owner's quota."""

    def __init__(self, quota: Quota, clock: Callable[[], float]) -> None:
        self.quota = quota
        self.running = 0
        self._requests = None if quota.requests_per_minute is None else TokenBucket(quota.requests_per_minute, clock)
        self._tokens = None if quota.tokens_per_minute is None else TokenBucket(quota.tokens_per_minute, clock)

    def begin(self) -> None:
        """Count a request. Raises `QuotaError`."""
        if self._requests is not None:
            if seconds := self._requests.seconds_until(1):
                raise QuotaError(f"this key may send {self.quota.requests_per_minute:g} requests per minute", seconds)
            self._requests.take(1)

    def reserve(self, num_requests: int, num_tokens: int) -> None:
        """Take tokens for requests that begin to run. Raises `QuotaError`, and takes nothing, if there are too few."""
        most = self.quota.max_concurrent_requests
        # One request of many prompts can run when nothing else does.
        if most is not None and self.running and self.running + num_requests > most:
            raise QuotaError(f"this key may have {most} running requests at a time", _BUSY_SECONDS)
        if self._tokens is not None:
            if seconds := self._tokens.seconds_until(num_tokens):
                raise QuotaError(
                    f"this key may use {self.quota.tokens_per_minute:g} tokens per minute, and this request may use "
                    f"up to {num_tokens} (prompt and max_tokens)",
                    seconds,
                )
            self._tokens.take(min(num_tokens, self._tokens.size))
        self.running += num_requests

    def settle(self, reserved: int, used: int) -> None:
        """One request has ended: give back what it did not use."""
        self.running -= 1
        if self._tokens is not None:
            self._tokens.take(used - min(reserved, self._tokens.size))


class Reservation:
    """The resources that one request may use, until it ends."""

    def __init__(self, account: Account, reserved: int, num_prompt_tokens: int, *, returns: bool = True) -> None:
        """`returns`: whether what is not used is given back."""
        self.outputs: list[list[int]] = []
        """The tokens of each sequence, as they come."""
        self._account, self._reserved, self._prompt = account, reserved, num_prompt_tokens
        self._returns, self._open = returns, True

    def cancel(self) -> None:
        """The request was not taken: all goes back."""
        if self._open:
            self._open = False
            self._account.settle(self._reserved, 0)

    def settle(self) -> None:
        """The request has ended, in whatever way. May be called again."""
        if self._open:
            self._open = False
            used = self._prompt + sum(map(len, self.outputs)) if self._returns else self._reserved
            self._account.settle(self._reserved, used)


class Quotas:
    """The accounts of all owners that have been here."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._accounts: dict[str, Account] = {}

    def account(self, owner: Owner, quota: Quota) -> Account:
        """The account of an owner; a new one if its quota has changed."""
        account = self._accounts.get(owner.name)
        if account is None or account.quota != quota:
            self._forget_some()
            running = 0 if account is None else account.running
            account = self._accounts[owner.name] = Account(quota, self._clock)
            account.running = running
        return account

    def _forget_some(self) -> None:
        if len(self._accounts) >= _MOST_ACCOUNTS:
            idle = [name for name, account in self._accounts.items() if not account.running]
            for name in idle[: _MOST_ACCOUNTS // 2]:
                del self._accounts[name]


def reserve(account: Account, requests: Iterable[Any], max_model_len: int) -> None:
    """Reserve tokens for prepared requests, all or none, and note it in each. Raises `QuotaError`."""
    made = [(each, *_cost(each, max_model_len)) for each in requests]
    account.reserve(len(made), sum(cost for _, cost, _ in made))
    for request, cost, returns in made:
        request.reservation = Reservation(account, cost, len(request.prompt_token_ids), returns=returns)


def _cost(request: Any, max_model_len: int) -> tuple[int, bool]:
    """Most tokens that a request can take, and whether it is known how many it took."""
    prompt = len(request.prompt_token_ids)
    most = getattr(request.params, "max_tokens", 0)
    room = max_model_len - prompt
    output = room if most is None else min(room, most)
    searched = getattr(request.params, "num_searched", 0)
    return prompt + output * (searched or len(request.children)), not searched


def retry_after(seconds: float) -> str:
    """For the header of that name."""
    return str(max(1, math.ceil(seconds)))
