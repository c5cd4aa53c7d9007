"""What `jaxllm models --missing` prints: the steps of docs/add-a-model.md, filled in for one configuration."""

import json
from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxllm.models.families.gaps import Gaps

COLUMNS = 100
LONGEST = 60
"""Characters of a value."""


def steps(gaps: "Gaps") -> Iterator[str]:
    """The lines of a report on what a configuration needs."""
    if gaps.are_none:
        yield f"nothing is missing: {gaps.architecture} is here, and reads this configuration"
        return
    if gaps.is_known:
        yield f"{gaps.architecture} is here, but not with this configuration."
        yield from _paragraph(f"It says: {gaps.problem}")
        yield from _options(gaps.unread, "Its family does not read these options:")
        return
    reason = f" It needs: {gaps.reason}." if gaps.reason else ""
    yield from _paragraph(f"{gaps.architecture} is not here.{reason} docs/add-a-model.md explains these steps:")
    yield ""
    yield from _paragraph(f"1. The config map. Most of this file is read by the family of {gaps.nearest}: begin there.")
    if gaps.problem is not None:
        yield from _paragraph(f"It says: {gaps.problem}", indent=3)
    yield from _options(gaps.unread, "It does not read these options, which seem to belong to:", indent=3)
    yield from _paragraph(
        "2. The layer plan. Fields of `LayerPlan` for what these options say; if no plan can express it, a field more "
        "in the plan and in the shared layer."
    )
    yield from _paragraph("3. The weight-name map. `weight_names`, where tensors are not called as in that family.")
    if gaps.has_tower:
        yield from _paragraph("It also has parts for images or sound. They need a tower's plan.", indent=3)
    yield from _paragraph(
        f"4. Register it. A line in models/families/registry.py, or an entry point `jaxllm.models` named "
        f"{gaps.architecture}."
    )
    yield from _paragraph("5. Test it. A case in tests/models/test_families.py.")


def _options(parts: Mapping[str, Mapping[str, Any]], heading: str, indent: int = 0) -> Iterator[str]:
    """The options that are not read, a paragraph for each part."""
    if not parts:
        return
    yield from _paragraph(heading, indent=indent)
    for part, options in parts.items():
        named = ", ".join(f"{name} = {_short(value)}" for name, value in options.items())
        yield from _paragraph(f"- {part}: {named}", indent=indent)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _paragraph(text: str, indent: int = 0) -> list[str]:
    following = " " * (indent + (3 if text[:1].isdigit() else 2 if text.startswith("- ") else 0))
    return wrap(text, COLUMNS, initial_indent=" " * indent, subsequent_indent=following, break_on_hyphens=False)
