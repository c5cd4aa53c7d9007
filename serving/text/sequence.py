"""Requests and sequences in flight: what the engine has said of them so far, as text."""

from collections import abc
from typing import Any, Protocol

from jaxllm.requests.outputs import EngineOutput, RankedSequence, RequestDrafts, TokenLogprobs
from jaxllm.serving.text.detokenizer import ContinuingDecoder, IncrementalDecoder, begun_character
from jaxllm.serving.text.input_processor import TextRequest
from jaxllm.serving.text.measurements import SequenceTimes
from jaxllm.serving.text.outputs import CompletionOutput, Logprob, RequestMetrics, RequestOutput, TokenChoices
from jaxllm.serving.text.repetition import STOP_REASON, RepetitionWatch
from jaxllm.serving.text.spec_decode_metrics import SpecDecodeMetrics
from jaxllm.serving.text.stop_strings import StopStrings
from jaxllm.serving.text.tokenizer import Tokenizer


class TextReader(Protocol):
    """Who may take text at once, without a result around it. A protocol, since streams belong to folders above."""

    def put_text(self, index: int, text: str, token_ids: list[int]) -> bool:
        """Take text, and its tokens, of the sequence of this index; or return False for it to come in a result."""


class RequestState:
    """A request in flight: what its sequences share."""

    __slots__ = (
        "completions", "kv_transfer_params", "metrics", "num_cached_tokens", "prompt_logprobs", "reader", "request",
        "unfinished",
    )  # fmt: skip

    def __init__(self, request: TextRequest, reader: TextReader | None = None) -> None:
        self.request = request
        self.reader = reader
        self.metrics = RequestMetrics(request.arrival_time)
        self.unfinished = len(request.children)
        self.completions: list[CompletionOutput] = []
        self.prompt_logprobs: list[TokenChoices | None] | None = None
        self.num_cached_tokens = 0
        self.kv_transfer_params: dict[str, Any] | None = None

    def take_prompt_logprobs(self, logprobs: abc.Sequence[TokenLogprobs | None], tokenizer: Tokenizer | None) -> None:
        """Take the log-probabilities of the prompt."""
        # Every sequence computes them; they are the same.
        if self.prompt_logprobs is None:
            self.prompt_logprobs = [None if item is None else _choices(item, tokenizer) for item in logprobs]

    def best(self) -> list[CompletionOutput]:
        """The `n` sequences to return, the most likely first if there is a choice, else in order."""
        params = self.request.params
        if params.num_sequences == params.n:
            return sorted(self.completions, key=lambda completion: completion.index)
        ranked = sorted(self.completions, key=lambda completion: -(completion.cumulative_logprob or 0.0))[: params.n]
        for index, completion in enumerate(ranked):
            completion.index = index
            if params.logprobs is None:
                completion.logprobs = None
        return ranked

    def result(self, outputs: list[CompletionOutput], finished: bool) -> RequestOutput:
        """A result of the request with these outputs."""
        prompt_logprobs = self.prompt_logprobs
        adapter = self.request.children[0].lora_request if self.request.children else None
        if adapter is not None:
            for each in outputs:
                each.lora_request = adapter
        if self.request.stream:
            self.prompt_logprobs = None
        return RequestOutput(
            request_id=self.request.request_id,
            prompt=self.request.prompt,
            prompt_token_ids=self.request.prompt_token_ids,
            outputs=outputs,
            finished=finished,
            prompt_logprobs=prompt_logprobs,
            metrics=self.metrics,
            num_cached_tokens=self.num_cached_tokens,
            lora_request=adapter,
            kv_transfer_params=self.kv_transfer_params,
        )


class Sequence:
    """One sequence in flight: its tokens, its text so far, and why it ended.

    Most sequences only stream text (`only_text`). After its first token such a sequence has a fast path: further ones
    may be given to `take_text` instead of `take`.
    """

    __slots__ = (
        "_cumulative",
        "_decoder",
        "_drafts",
        "_interval",
        "_logprobs",
        "_news",
        "_pieces",
        "_repetition",
        "_reported",
        "_stops",
        "_tokenizer",
        "finish_reason",
        "has_fast_path",
        "index",
        "only_text",
        "ranked",
        "state",
        "stop_reason",
        "times",
        "token_ids",
    )  # fmt: skip

    def __init__(self, state: RequestState, index: int, tokenizer: Tokenizer | None, stream_interval: int = 1) -> None:
        params = state.request.params
        self.state = state
        self.index = index
        self.token_ids: list[int] = []
        self.ranked: list[RankedSequence] | None = None
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.times: SequenceTimes | None = None
        self._tokenizer = tokenizer if params.detokenize else None
        self._cumulative = 0.0
        self._drafts: SpecDecodeMetrics | None = None
        self._logprobs: list[TokenChoices] | None = None
        self._news: abc.Sequence[TokenLogprobs] = ()
        self._pieces: list[str] = []
        self._reported = 0
        self._interval = max(stream_interval, params.stream_interval or 1)
        detection = params.repetition_detection
        self._repetition = RepetitionWatch(detection) if detection and detection.max_pattern_size else None
        stops = state.request.stops
        self._stops = None if stops is None else StopStrings(stops, include=params.include_stop_str_in_output)
        # Joining special tokens without spaces is the incremental decoder's business alone.
        joins = not params.skip_special_tokens and not params.spaces_between_special_tokens
        live = state.request.stream or self._stops is not None or joins
        self._decoder: IncrementalDecoder | None = None
        if self._tokenizer is not None:
            self._decoder = _decoder(self._tokenizer, state.request, live=live)

        self.only_text = (
            self._decoder is not None
            and state.request.stream
            and self._stops is None
            and self._repetition is None
            and self._interval == 1
            and params.logprobs is None
            and params.best_of in (None, params.n)
        )
        self.has_fast_path = False

    def take_text(self, token_ids: list[int]) -> RequestOutput | None:
        """Take more tokens, which do not end the sequence; the delta, if there is text that its reader did not take."""
        assert self._decoder is not None
        known = self.token_ids
        known += token_ids
        push = self._decoder.push
        piece = push(token_ids[0]) if len(token_ids) == 1 else "".join(map(push, token_ids))
        if not piece:
            return None
        first, self._reported = self._reported, len(known)
        new = token_ids if self._reported - first == len(token_ids) else known[first:]
        reader = self.state.reader
        if reader is not None and reader.put_text(self.index, piece, new):
            return None
        return self.state.result([CompletionOutput(self.index, piece, new)], finished=False)

    def take_drafts(self, drafts: RequestDrafts) -> None:
        """Count the drafts of some steps."""
        if self._drafts is None:
            self._drafts = SpecDecodeMetrics.empty(drafts.most, is_detailed=drafts.is_detailed)
        for step in drafts.steps:
            self._drafts.count(*step)

    def take(self, output: EngineOutput) -> str | None:
        """Take one step's news. Returns the stop that ends the sequence, if the engine does not know of it."""
        first = len(self.token_ids)
        self.token_ids += output.token_ids
        self._news = output.logprobs or ()
        if output.logprobs is not None:
            self._take_logprobs(output.logprobs)
        self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
        self.ranked = output.sequences
        if self._repetition is not None and self._repeats(self._repetition, first):
            self.finish_reason, self.stop_reason = "repetition", STOP_REASON
        stop = None
        if self._decoder is not None:
            stop = self._decode(self._decoder, first)
            if stop is None and self.finish_reason is not None:
                stop = self._flush(self._decoder)
        if stop is not None:
            self.finish_reason, self.stop_reason = "stop", stop
        elif self.finish_reason == "repetition":
            stop = STOP_REASON
        return stop if output.finish_reason is None else None

    def _repeats(self, watch: RepetitionWatch, first: int) -> bool:
        """Whether the tokens from index `first` on end in a repetition; those after it are forgotten."""
        ends = self.finish_reason is not None
        for place in range(first, len(self.token_ids)):
            found = watch.push(self.token_ids[place])
            # What the engine ends with this token, ends as the engine says.
            is_end = ends and place == len(self.token_ids) - 1
            if found and not is_end and place + 1 >= self.state.request.params.min_tokens:
                self._cut(place + 1)
                return True
        return False

    def _cut(self, length: int) -> None:
        """Forget the tokens after the first ones, all of them of the last step."""
        rest = len(self._news) - (len(self.token_ids) - length)
        self._cumulative -= sum(item.logprob for item in self._news[rest:])
        del self.token_ids[length:]
        if self._logprobs is not None:
            del self._logprobs[length:]

    def _decode(self, decoder: IncrementalDecoder, first: int) -> str | None:
        """Decode the tokens from index `first` on; at a stop string, forget those after it and return it."""
        params, stops = self.state.request.params, self._stops
        for place in range(first, self._text_end()):
            piece = decoder.push(self.token_ids[place])
            if stops is not None:
                piece = stops.push(piece, check=place >= params.min_tokens)
            if piece:
                self._pieces.append(piece)
            if stops is not None and stops.matched is not None:
                self._cut(place + 1)
                return stops.matched
        return None

    def _flush(self, decoder: IncrementalDecoder) -> str | None:
        """Let out what was held back: the sequence is over. Returns the stop string this completes, if any."""
        rest = decoder.flush()
        stops = self._stops
        if stops is not None:
            rest = stops.push(rest) + stops.flush()
        if rest:
            self._pieces.append(rest)
        return None if stops is None else stops.matched

    def _text_end(self) -> int:
        """Number of tokens that belong to the text: not the stop token, unless it was asked for."""
        hidden = self.finish_reason == "stop" and not self.state.request.params.include_stop_str_in_output
        return len(self.token_ids) - hidden

    def _take_logprobs(self, items: abc.Sequence[TokenLogprobs]) -> None:
        self._cumulative += sum(item.logprob for item in items)
        if self._logprobs is None:
            self._logprobs = []
        # Without a request for them, they are here for best_of alone.
        if self.state.request.params.logprobs is not None:
            ranked = self.state.request.params.logprob_token_ids is None
            self._logprobs += [_choices(item, self._tokenizer, ranked=ranked) for item in items]

    def _text(self) -> str:
        """All text, when it was not decoded on the way."""
        if self._decoder is not None:
            return "".join(self._pieces)
        if self._tokenizer is None:
            return ""
        skip, kept = self.state.request.params.skip_special_tokens, self.state.request.preserved_tokens
        token_ids = self.token_ids[: self._text_end()]
        if skip and kept:
            hidden = self._tokenizer.special_ids - kept
            skip, token_ids = False, [token_id for token_id in token_ids if token_id not in hidden]
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip)

    def completions(self) -> list[CompletionOutput]:
        """The whole sequence, or those that were ranked."""
        if self.ranked is None:
            return [self._output(self._text(), self.token_ids, self._logprobs)]
        return [self._ranked(index, found) for index, found in enumerate(self.ranked)]

    def _ranked(self, index: int, found: RankedSequence) -> CompletionOutput:
        params, text = self.state.request.params, ""
        if self._tokenizer is not None:
            hidden = found.finish_reason == "stop" and not params.include_stop_str_in_output
            shown = found.token_ids[: len(found.token_ids) - hidden]
            text = self._tokenizer.decode(shown, skip_special_tokens=params.skip_special_tokens)
        logprobs = found.logprobs
        return CompletionOutput(
            index=index,
            text=text,
            token_ids=found.token_ids,
            cumulative_logprob=found.cumulative_logprob,
            logprobs=None if logprobs is None else [_choices(item, self._tokenizer) for item in logprobs],
            finish_reason=found.finish_reason,
            stop_reason=found.stop_reason,
            beam_tree=found.tree,
        )

    def delta(self) -> CompletionOutput | None:
        """The new text since the last call; None while new tokens show no text yet."""
        first = self._reported
        if self.finish_reason is None:
            if not (self._pieces or (self._decoder is None and first < len(self.token_ids))):
                return None
            if first > 0 and len(self.token_ids) - first < self._interval:
                return None
        text = "".join(self._pieces)
        self._pieces.clear()
        self._reported = len(self.token_ids)
        return self._output(text, self.token_ids[first:], None if self._logprobs is None else self._logprobs[first:])

    def _output(self, text: str, token_ids: list[int], logprobs: list[TokenChoices] | None) -> CompletionOutput:
        return CompletionOutput(
            index=self.index,
            text=text,
            token_ids=token_ids,
            cumulative_logprob=None if self._logprobs is None else self._cumulative,
            logprobs=logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            spec_decode_metrics=None if self.finish_reason is None else self._drafts,
        )


def _decoder(tokenizer: Tokenizer, request: TextRequest, *, live: bool) -> IncrementalDecoder | None:
    """The decoder of a sequence, token by token: of streams, and where the prompt ends within a character."""
    params = request.params
    settings: dict[str, Any] = {
        "skip_special_tokens": params.skip_special_tokens,
        "spaces_between_special_tokens": params.spaces_between_special_tokens,
        "preserved_tokens": request.preserved_tokens,
    }
    # A text ends in no half of one.
    begun = begun_character(tokenizer, request.prompt_token_ids) if request.prompt is None else ()
    if begun:
        return ContinuingDecoder(tokenizer, begun, **settings)
    return IncrementalDecoder(tokenizer, **settings) if live else None


def _choices(item: TokenLogprobs, tokenizer: Tokenizer | None, *, ranked: bool = True) -> TokenChoices:
    """The chosen token and its alternatives by token id, the chosen one first; `ranked`: the most likely ones."""
    text = tokenizer.token_text if tokenizer is not None else lambda token_id: None
    choices = {item.token_id: Logprob(item.logprob, item.rank, text(item.token_id))}
    for rank, (token_id, logprob) in enumerate(zip(item.top_ids, item.top_logprobs, strict=True), start=1):
        if token_id not in choices:
            choices[token_id] = Logprob(logprob, rank if ranked else None, text(token_id))
    return choices
