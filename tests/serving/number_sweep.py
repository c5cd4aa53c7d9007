"""Requests with every number that an OpenAPI document knows, at and beyond its bounds."""

import json
import math
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.serving.schema_sweep import Document, Place

LARGE = str(10**400)
ENDS = ("0", "-1", str(-(2**63) - 1), str(2**64), LARGE, "1e308", "-1e308", "5e-324")
ALL = (
    *ENDS, "-0.0", "1", "2", "1.5", "400", "-400", "0.9999999999999999", "16777217", "3.5e38", "1e22", "1e400",
    *("-1e400", "NaN", "Infinity", "-Infinity", "true", "null", f"-{LARGE}"),
    *(str(sign * 2**power + more) for power in (31, 32, 63) for sign in (1, -1) for more in (-1, 0, 1)),
)  # fmt: skip
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "stream": {"stream": True},
    "beams": {"use_beam_search": True, "n": 2},
    "regex": {"structured_outputs": {"regex": "[ab]+"}},
    "json": {"response_format": {"type": "json_object"}},
    "logprobs": {"logprobs": 2},
}
MODE_ENDS = ("1e308", "-1", "0", "5e-324")
"""For modes other than plain, unless everything is tried."""
GENERATING = ("/v1/completions", "/v1/chat/completions")
NOT_TRIED = ("/scale", "/scale_elastic_ep")
"""They start engines, which is what they are for."""

Case = tuple[Place, str, dict[str, Any]]


def bounds(place: Place, document: Document) -> Iterator[str]:
    """The bounds of a place, and numbers just outside and inside."""
    for choice in document.choices(place.schema):
        for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if name in choice:
                bound = choice[name]
                yield json.dumps(bound)
                if choice["type"] == "integer":
                    yield from (json.dumps(bound - 1), json.dumps(bound + 1))
                else:
                    yield from (json.dumps(math.nextafter(bound, end)) for end in (-math.inf, math.inf))


def numbers(document: Document, *, everything: bool) -> Iterator[Place]:
    """Places that are for numbers; with `everything` also those that may be anything."""
    for place in document.places("integer", "number"):
        known = any(choice.get("type") in ("integer", "number") for choice in document.choices(place.schema))
        if (known or everything) and place.route not in NOT_TRIED:
            yield place
    # A mapping in the document, whose names are those of sampling parameters.
    for name in document.fields("/v1/completions"):
        body = {"token_ids": [5, 6], "sampling_params": {"max_tokens": 1, name: "\x02"}}
        yield Place("post", "/inference/v1/generate", ("sampling_params", name), {}, body)


def cases(document: Document, *, everything: bool) -> Iterator[Case]:
    turn = 0
    for number, place in enumerate(numbers(document, everything=everything)):
        # Every other end, the others with the next place.
        literals = dict.fromkeys((*(ALL if everything else ENDS[number % 2 :: 2]), *bounds(place, document)))
        fields = document.fields(place.route) if isinstance(place.body, dict) else set()
        for name, more in MODES.items():
            if place.path[0] in more or not more.keys() <= fields:
                continue
            if name == "plain" or everything:
                yield from ((place, literal, more) for literal in literals)
            elif place.route in GENERATING and len(place.path) == 1:
                # One of four, the others with the next modes or fields.
                turn += 1
                yield place, MODE_ENDS[turn % len(MODE_ENDS)], more


def send(client: httpx.Client, case: Case) -> str | None:
    """The fault of the answer, if there is one."""
    place, literal, more = case
    if place.body is None:
        response = client.request(place.method, place.route, params={str(place.path[0]): literal})
    else:
        content = place.content(literal, **more)
        response = client.request(
            place.method, place.route, content=content, headers={"Content-Type": "application/json"}
        )
    busy = response.status_code == 503 and '"queue_full"' in response.text
    late = response.status_code == 504 and place.path[0] == "timeout"  # as it was asked for
    broken = response.status_code >= 500 or '"internal_error"' in response.text
    if not broken or busy or late:
        return None
    return f"{place}={literal[:30]} {more}: {response.status_code} {response.text[:300]}"


def sweep(http: httpx.Client, *, everything: bool, only: Collection[str] = ()) -> tuple[int, list[str]]:
    """Send all cases, of `only` these routes if any are named, over a few connections; how many, and what was wrong."""
    document = Document(http.get("/openapi.json").json())
    tried = [case for case in cases(document, everything=everything) if not only or case[0].route in only]
    with ThreadPoolExecutor(4) as threads:
        return len(tried), [problem for problem in threads.map(lambda case: send(http, case), tried) if problem]
