"""Whether an engine can run a beam search."""

from jaxllm.config.engine_info import EngineInfo
from jaxllm.errors import RequestError
from jaxllm.requests.beam_options import BeamOptions


def check_beam_search(
    options: BeamOptions, prompt_length: int, max_tokens: int | None, num_ends: int, info: EngineInfo
) -> None:
    """Raise `RequestError` unless this engine can run a beam search.

    `num_ends` tokens complete a hypothesis, which has at most `max_tokens` (None: up to the model's length).
    """
    width = options.width
    if info.logprobs_mode != "raw_logprobs":
        raise _wrong(width, f"the engine was started with logprobs_mode={info.logprobs_mode!r}, not raw_logprobs")
    places = ((info.max_num_seqs, "max_num_seqs"), (info.max_num_batched_tokens, "max_num_batched_tokens"))
    for limit, name in places:
        if width > limit:
            raise _wrong(width, f"each beam needs a place in the batch, of which there are {limit} ({name})")
    candidates = width + num_ends
    if candidates > info.vocab_size:
        raise _wrong(width, f"the vocabulary has {info.vocab_size} tokens, {num_ends} of which end a text")
    if candidates > info.max_logprobs:
        raise _wrong(
            width,
            f"{candidates} most likely tokens are needed at each place, one for each beam and for each of "
            f"{num_ends} end tokens, but the engine was started for {info.max_logprobs} (max_logprobs)",
        )
    _check_pages(width, prompt_length, max_tokens, info)


def _check_pages(width: int, prompt_length: int, max_tokens: int | None, info: EngineInfo) -> None:
    """The beams share the full pages of the prompt; in the worst case no others."""
    longest = info.max_model_len if max_tokens is None else min(info.max_model_len, prompt_length + max_tokens)
    needed = info.cache_groups.most_pages(longest, width, prompt_length)
    if needed > info.num_pages - 1:
        raise _wrong(
            width,
            f"beams of {longest} tokens need up to {needed} pages of the KV cache, which has "
            f"{info.num_pages - 1}; ask for fewer beams or fewer tokens",
        )


def _wrong(width: int, reason: str) -> RequestError:
    return RequestError(f"beam_width={width}: {reason}", "beam_width")
