"""Which cases an interpreter runs: each takes seconds to compile, so few that have every choice of all together."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case
from tests.thinned import EVERY_CASE

_CHOICES = (
    "num_kv_heads", "head_size", "page_size", "unseen_are_null", "soft_cap", "sinks", "alibi", "dtype", "kv_dtype",
    "scale_bytes", "traced",
)  # fmt: skip
"""Fields where every value counts. For the others, `_choices` has kinds of values."""

READ_BY_CHIPS = tuple(case for case in CASES if not case.scale_bytes)
"""Without scales by token and head, which the kernels for TPUs and GPUs refuse."""

READ_BY_GPUS = tuple(case for case in READ_BY_CHIPS if not case.spans)
"""And without tokens that see later ones."""


def covering(cases: Sequence[Case]) -> tuple[Case, ...]:
    """Cases that have every choice at least once; all, where the environment has JAXLLM_EVERY_CASE."""
    return tuple(cases) if EVERY_CASE else tuple(_covering(cases, set()))


def joined(cases: Sequence[Case], dtype: str = "float32") -> tuple[Case, ...]:
    """As `covering`, but cases that differ from an ordinary one in different fields are one: a third as many.

    `dtype` is that of an ordinary one.
    """
    plain = Case("plain", (), dtype=dtype)
    if EVERY_CASE:
        return tuple(cases)
    found: list[Case] = []
    for case in _covering(cases, set()):
        for place, other in enumerate(found):
            both = _join(other, case, plain)
            if both is not None:
                found[place] = both
                break
        else:
            found.append(case)
    return _needed((*found, *_covering(cases, set().union(*map(_choices, found)))))


def _needed(cases: Sequence[Case]) -> tuple[Case, ...]:
    """Without the cases whose choices others have, too; those of many tokens go first."""
    found = list(cases)
    for case in sorted(cases, key=lambda case: -case.num_tokens):
        if _choices(case) <= set().union(*(_choices(other) for other in found if other is not case)):
            found.remove(case)
    return tuple(found)


def _covering(cases: Sequence[Case], there: set[tuple[str, object]]) -> list[Case]:
    """Cases that have every choice which is not there yet."""
    missing = set().union(*map(_choices, cases)) - there
    found: list[Case] = []
    while missing:
        # Of those that have as many, the one with the fewest tokens: it takes the least time.
        found.append(max(cases, key=lambda case: (len(_choices(case) & missing), -case.num_tokens)))
        missing -= _choices(found[-1])
    return found


_TYPES = ("dtype", "kv_dtype", "k_scale", "v_scale", "scale_bytes")
_BELONG_TOGETHER = (
    ("num_heads", "num_kv_heads"), ("window", "chunk", "unseen_are_null", "prefix", "spans"),
    *((name,) for name in ("page_size", "padding_tokens", "padding_rows", "soft_cap", "sinks", "alibi")),
    ("traced",), ("most_short",),
)  # fmt: skip


def _join(one: Case, other: Case, plain_case: Case) -> Case | None:
    """A case with what is particular in both; None where they contradict each other, or rows would show nothing."""
    if not (_shows_all(one) and _shows_all(other)):
        return None
    options: dict[str, Any] = {}
    # Kernels support some sizes of heads for some types of a byte only.
    is_narrow = min(one.cache_dtype.itemsize, other.cache_dtype.itemsize) == 1
    types = [(*_TYPES, "head_size")] if is_narrow else [_TYPES, ("head_size",)]
    for names in (*_BELONG_TOGETHER, *types):
        own, its, plain = ([getattr(case, name) for name in names] for case in (one, other, plain_case))
        if plain not in (own, its) and own != its:
            return None
        options |= zip(names, its if own == plain else own, strict=True)
    rows = {case.rows for case in (one, other)} - {case.rows for case in CASES if case.name in ("mixed", "group_3")}
    if len(rows) > 1:
        return None
    return replace(one, name=f"{one.name}-{other.name}", rows=rows.pop() if rows else one.rows, **options)


def _shows_all(case: Case) -> bool:
    """Whether there is a decode and a chunk, both after some context: every option has something to do."""
    return {new > 1 for new, computed in case.rows if new and computed} == {False, True}


def _choices(case: Case) -> set[tuple[str, object]]:
    return {
        *((name, getattr(case, name)) for name in _CHOICES),
        ("query heads per KV head", case.num_heads // case.num_kv_heads),
        # One that hides all, or all but the query's own key; one that is shorter than a page, and others.
        ("window", None if case.window is None else min(case.window, 2) + (case.window >= case.page_size)),
        ("chunks", case.chunk is not None),
        ("padding of tokens", case.padding_tokens > 0),
        ("padding of rows", case.padding_rows > 0),
        ("scales", (case.k_scale is not None, case.cache_dtype.name)),
        ("shared prefix", case.prefix > 0),
        *([("short rows", case.window is not None)] if case.most_short > 1 else []),
        ("spans", "none" if not case.spans else "whole" if case.window is None else "in windows"),
        ("rows", min(len(case.rows), 2) + (len(case.rows) > 32)),
        *(("row", _kind(*row)) for row in case.rows),
    }


def _kind(new: int, computed: int) -> str:
    """The kernel's work for a row: whether it is a decode, and where its tokens and its context end."""
    if new <= 1:
        context = "no" if not computed else "short" if computed < 128 else "long" if computed < 1024 else "very long"
        return f"{('nothing', 'decode')[new]} after {context} context"
    return f"{'chunk' if computed else 'whole prompt'} of {'some' if new <= 64 else 'many'} tokens"
