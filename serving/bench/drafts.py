"""Speculative decoding as a server's metrics tell of it, before a load test and after."""

import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

DRAFT_TITLES = {
    "spec_decode_acceptance_rate": "Acceptance rate (%)",
    "spec_decode_acceptance_length": "Acceptance length",
    "spec_decode_num_drafts": "Drafts",
    "spec_decode_draft_tokens": "Draft tokens",
    "spec_decode_accepted_tokens": "Accepted tokens",
}
"""Figures under the names that `vllm bench serve` gives them, and their headings."""

_SAMPLE = re.compile(r"^\w+:spec_decode_(\w+)_total(?:{(.*)})? (\S+)$", re.MULTILINE)
_POSITION = re.compile(r'position="(\d+)"')
_TIMEOUT = 5.0


def read_draft_counters(base_url: str, headers: Mapping[str, str], tls: ssl.SSLContext | None) -> dict[str, float]:
    """The counters of a server's /metrics, of all its engines; empty where there are none, or no answer."""
    found: dict[str, float] = {}
    if not base_url.startswith(("http://", "https://")):
        return found
    with suppress(OSError, HTTPException, ValueError):
        try:
            with urlopen(
                Request(f"{base_url}/metrics", headers=dict(headers)), timeout=_TIMEOUT, context=tls
            ) as answer:
                text = answer.read().decode()
        except HTTPError as error:
            error.close()  # it holds the connection
            return found
        for name, labels, value in _SAMPLE.findall(text):
            position = _POSITION.search(labels)
            key = f"{name} {position[1]}" if position else name
            found[key] = found.get(key, 0.0) + float(value)
    return found


def draft_figures(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Any]:
    """The difference of two states; empty where nothing was drafted."""
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    drafts, tokens = grown.get("num_drafts", 0.0), grown.get("num_draft_tokens", 0.0)
    accepted = grown.get("num_accepted_tokens", 0.0)
    if drafts <= 0 or tokens <= 0:
        return {}
    by_position = sorted((int(name.partition(" ")[2]), value / drafts) for name, value in grown.items() if " " in name)
    return {
        "spec_decode_acceptance_rate": 100 * accepted / tokens,
        "spec_decode_acceptance_length": 1 + accepted / drafts,
        "spec_decode_num_drafts": int(drafts),
        "spec_decode_draft_tokens": int(tokens),
        "spec_decode_accepted_tokens": int(accepted),
        "spec_decode_per_position_acceptance_rates": [rate for _, rate in by_position],
    }
