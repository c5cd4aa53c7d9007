"""Grammars by llguidance (https://github.com/guidance-ai/llguidance): an Earley parser over lazily derived lexers.

It leaves the GIL to others while it compiles and while it computes masks.
"""

import os
import re
import time
from collections.abc import Sequence
from typing import Any, Final

import llguidance
import numpy as np
import numpy.typing as npt

from jaxllm.errors import RequestError, shortened
from jaxllm.models.errors import is_failure
from jaxllm.requests.structured_outputs import StructuredOutputsParams
from jaxllm.structured.backend import Matcher, Vocabulary, mask_words
from jaxllm.structured.llguidance_source import source_of

LIMITS: Final[dict[str, Any]] = {
    "max_items_in_row": 10_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 100_000,
    "max_grammar_size": 500_000,
    "verbose_errors": False,
}
"""Limits of work and memory, counted so that equal requests get equal answers: by llguidance's figures, about 20 ms
to build a lexer, 15 ms for one mask and 150 MB of states for one output."""

SLOW_SECONDS: Final = 0.5
"""A mask that takes longer ends its request: all others wait for it. What takes half of that is rejected before."""

SLOW_FORCED_SECONDS: Final = 0.1
"""No other Python runs while llguidance looks for what must follow: about 10 us for each byte of it."""

FILLS_ALONE: Final = 100
"""After a slow one so many masks are computed one after the other, to find the next slow one."""

_SLOW: Final = "the grammar is too complex: computing the allowed tokens takes too long"

_CORES: Final = os.cpu_count() or 1
_REWRITTEN: Final = (
    (
        re.compile(r"oneOf constraints are not supported\. Enable 'coerce_one_of'.*"),
        "oneOf needs schemas that differ in type or in a constant of a required property; otherwise use anyOf",
    ),
    (
        re.compile(r"Resource '([^']{0,80})[^']*' is not present in a registry.*"),
        r"$ref points to another document, '\1', which is not fetched: copy the definition into this schema",
    ),
    (
        re.compile(r"Unimplemented keys: \[(.*)\]"),
        r"these keywords of JSON Schema are not supported: \1",
    ),
    (re.compile(r"(Unsatisfiable schema: Regex is empty):.*"), r"\1"),
    (
        re.compile(r"(Too many items [^)]*\)); try avoiding single-byte/short lexemes"),
        r"\1; less ambiguous rules, or regular expressions, need fewer",
    ),
    (re.compile(r"; consider making your grammar left-recursive if it's right-recursive"), ""),
)


def make_backend(vocabulary: Vocabulary) -> "LLGuidance":
    """A backend for this vocabulary; reads the tokenizer's file. Raises `RequestError` when it cannot."""
    return LLGuidance(vocabulary)


def check(form: StructuredOutputsParams) -> None:
    """Raise `RequestError` if the grammar is wrong, not supported or too complex, whatever the tokenizer."""
    source = _source(form, lambda text: False)
    limits = llguidance.LLParserLimits(**LIMITS)
    wrong, messages = llguidance.LLMatcher.validate_grammar_with_warnings(source, limits=limits)
    if wrong:
        raise _error(form, messages[0])


class LLGuidance:
    """Compiles for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = _tokenizer(vocabulary)
        self._words = mask_words(vocabulary.size)
        self._limits = llguidance.LLParserLimits(**LIMITS)
        self._executor: Any = None
        self._alone = 0

    def compile(self, form: StructuredOutputsParams) -> "LLGrammar":
        """Compile, and compute a first mask. Raises `RequestError`."""
        source = _source(form, self._is_special)
        matcher = llguidance.LLMatcher(self._tokenizer, source, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise _error(form, matcher.get_error())
        matcher.compute_bitmask()
        if matcher.is_error():
            raise _error(form, matcher.get_error())
        return LLGrammar(matcher)

    def fill(self, matchers: Sequence[tuple[Matcher, int]], masks: npt.NDArray[np.int32]) -> list[str | None]:
        """Write masks, on several threads."""
        assert masks.shape[1] == self._words
        assert masks.flags.c_contiguous
        pairs = [(matcher.inner, row) for matcher, row in matchers if isinstance(matcher, LLMatch)]
        slow: set[int] = set()
        if len(pairs) == 1 or _CORES < 4 or self._alone:
            self._alone = max(0, self._alone - 1)
            slow = self._fill_alone(pairs, masks)
        else:
            # Made late: who only compiles should have no threads of it.
            self._executor = self._executor or llguidance.LLExecutor()
            began = time.perf_counter()
            self._executor.unsafe_compute_mask_ptr(pairs, masks.ctypes.data, self._words * 4, len(masks))
            if time.perf_counter() - began > SLOW_SECONDS:
                # Whose mask it was is seen when they are computed one after the other.
                self._alone = FILLS_ALONE
        return [
            first_line(inner.get_error()) if inner.is_error() else _SLOW if row in slow else None
            for inner, row in pairs
        ]

    def _fill_alone(self, pairs: Sequence[tuple[Any, int]], masks: npt.NDArray[np.int32]) -> set[int]:
        """Write masks one after the other; the rows of those that take too long."""
        slow: set[int] = set()
        last = time.perf_counter()
        processor = time.thread_time()
        for inner, row in pairs:
            inner.unsafe_compute_mask_ptr(masks[row].ctypes.data, self._words * 4)
            now = time.perf_counter()
            # On a machine that is busy the clock says little.
            if now - last > SLOW_SECONDS and time.thread_time() - processor > SLOW_SECONDS:
                slow.add(row)
                processor = time.thread_time()
            last = now
        return slow

    def _is_special(self, text: str) -> bool:
        found = self._tokenizer.tokenize_str(text, parse_special=True)
        return len(found) == 1 and bool(self._tokenizer.is_special_token(found[0]))


class LLGrammar:
    """A compiled grammar: a matcher that is only ever copied."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self.forces = True
        """Whether what must follow is looked for, so that the model need not be asked."""

    def matcher(self) -> "LLMatch":
        """A fresh copy."""
        return LLMatch(self._matcher.deep_copy(), self)


class LLMatch:
    """One output's state; `inner` is llguidance's."""

    __slots__ = ("_grammar", "inner")

    def __init__(self, inner: Any, grammar: LLGrammar) -> None:
        self.inner = inner
        self._grammar = grammar

    def copy(self) -> "LLMatch":
        """A copy of the state; what is known of the grammar is shared."""
        return LLMatch(self.inner.deep_copy(), self._grammar)

    def take(self, token_ids: Sequence[int]) -> str | None:
        """Go on; what is wrong, if anything."""
        taken = self.inner.consume_token(token_ids[0]) if len(token_ids) == 1 else self.inner.consume_tokens(token_ids)
        return None if taken else first_line(self.inner.get_error())

    @property
    def finished(self) -> bool:
        """Whether nothing may follow but the end."""
        return bool(self.inner.is_stopped())

    def forced(self) -> list[int]:
        """What must follow; where that takes long, nothing from then on, and the model finds it by the masks."""
        if not self._grammar.forces:
            return []
        began = time.thread_time()
        found: list[int] = self.inner.compute_ff_tokens()
        if time.thread_time() - began > SLOW_FORCED_SECONDS:
            self._grammar.forces = False
        return found


def _source(form: StructuredOutputsParams, is_special: Any) -> str:
    try:
        return source_of(form, is_special)
    except RecursionError:
        raise _error(form, "it is nested too deeply") from None
    except ValueError as error:
        if isinstance(error, RequestError):
            raise
        raise _error(form, str(error)) from None


def _error(form: StructuredOutputsParams, message: str) -> RequestError:
    return RequestError(f"{form.kind}: {first_line(message)}", form.kind)


def _tokenizer(vocabulary: Vocabulary) -> Any:
    path = vocabulary.folder / "tokenizer.json"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(
            f"structured outputs need a tokenizer.json, which is missing in {vocabulary.folder}",
            "structured_outputs",
        ) from error
    if not vocabulary.end_token_ids:
        raise RequestError("structured outputs need a model with an end token", "structured_outputs")
    try:
        # A file may ask to cut or pad what is encoded.
        if re.search(r'"(truncation|padding)"\s*:\s*\{', text[:2000]):
            from tokenizers import Tokenizer

            backend = Tokenizer.from_str(text)
            backend.no_truncation()
            backend.no_padding()
            text = backend.to_str()
        return llguidance.LLTokenizer(text, n_vocab=vocabulary.size, eos_token=list(vocabulary.end_token_ids))
    # Whatever the libraries find wrong with the file.
    except BaseException as error:
        if not is_failure(error):
            raise
        raise RequestError(
            f"structured outputs cannot use {path}: {first_line(str(error))}", "structured_outputs"
        ) from error


def first_line(message: str) -> str:
    """The message of llguidance, without its state and without pages of grammar."""
    if message.startswith("panic"):
        return "the grammar is too complex, or llguidance has a bug"
    message = message.split("\n<state>", maxsplit=1)[0].replace("\n<non-verbose/>", "").strip()
    message = re.sub(r"\s*\n\s*", " | ", message or "the grammar allows no further token")
    for pattern, better in _REWRITTEN:
        message = pattern.sub(better, message)
    return shortened(message)
