"""What beam searches an engine can run."""

from jaxllm.beam.group import end_token_ids
from jaxllm.errors import RequestError
from jaxllm.info import EngineInfo
from jaxllm.request import Request


def check_beams(request: Request, info: EngineInfo) -> None:
    """Raise `RequestError` unless an engine like this can run the beam search that the request asks for."""
    options = request.params.beam_search
    assert options is not None
    width, ends = options.width, end_token_ids(request.params, request.eos_token_ids)
    for limit, name in ((info.max_num_seqs, "max_num_seqs"), (info.max_num_batched_tokens, "max_num_batched_tokens")):
        if width > limit:
            raise _wrong(width, f"each beam needs a place in the batch, of which there are {limit} ({name})")
    candidates = width + len(ends)
    if candidates > info.vocab_size:
        raise _wrong(width, f"the vocabulary has {info.vocab_size} tokens, {len(ends)} of which end a text")
    if candidates > info.max_logprobs:
        raise _wrong(
            width,
            f"{candidates} most likely tokens are needed at each place, one for each beam and for each of {len(ends)} "
            f"end tokens, but the engine was started for {info.max_logprobs} (max_logprobs)",
        )
    _check_pages(request, info, width)


def _check_pages(request: Request, info: EngineInfo, width: int) -> None:
    """The beams share the full pages of the prompt; in the worst case no others."""
    size, prompt = info.block_size, len(request.prompt_token_ids)
    asked = request.params.max_tokens
    longest = info.max_model_len if asked is None else min(info.max_model_len, prompt + asked)
    shared = prompt // size
    needed = shared + width * (-(-longest // size) - shared)
    if needed > info.num_pages - 1:
        raise _wrong(
            width,
            f"beams of {longest} tokens need up to {needed} pages of the KV cache, which has {info.num_pages - 1}; ask "
            "for fewer beams or fewer tokens",
        )


def _wrong(width: int, reason: str) -> RequestError:
    return RequestError(f"beam_width={width}: {reason}", "beam_width")
