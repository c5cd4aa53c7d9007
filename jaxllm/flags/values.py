"""Values of flags, from text."""

import argparse
import json
from typing import Any

_MULTIPLIERS = {"k": 10**3, "K": 2**10, "m": 10**6, "M": 2**20, "g": 10**9, "G": 2**30}


def integer(text: str) -> int:
    """Read an int, also as vLLM writes large ones: `8k` is 8000 and `8K` is 8192; likewise m, M, g, G."""
    multiplier = _MULTIPLIERS.get(text[-1:], 1)
    digits = text if multiplier == 1 else text[:-1]
    try:
        return round(float(digits) * multiplier) if multiplier != 1 else int(digits)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None


def json_object(text: str) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"""{text!r} is not a JSON object such as '{{"name": true}}'""")
    return value
