from itertools import accumulate

from jaxllm.serving.openai.generation.logprobs import LogprobFormat, TextOffsets, prompt_logprobs
from jaxllm.serving.openai.protocol.logprobs import CompletionLogprobs
from jaxllm.serving.text.outputs import Logprob
from jaxllm.serving.text.token_bytes import TokenBytes
from jaxllm.serving.text.tokenizer import Tokenizer


def test_the_chosen_token_stands_among_the_likely_ones_only_if_it_is(tokenizer: Tokenizer) -> None:
    write = LogprobFormat(TokenBytes(tokenizer), alternatives=2)
    likely = {20: Logprob(-0.9, 2), 10: Logprob(-0.4, 1)}
    unlikely = {30: Logprob(-7.0, 9), 10: Logprob(-0.4, 1), 20: Logprob(-0.9, 2)}
    content = write.chat([likely, unlikely]).content
    assert content is not None
    names = {token_id: tokenizer.token_text(token_id) for token_id in (10, 20, 30)}
    assert [item.token for item in content] == [names[20], names[30]]
    assert [[top.token for top in item.top_logprobs] for item in content] == [[names[10], names[20]]] * 2
    assert [top.logprob for top in content[1].top_logprobs] == [-0.4, -0.9]


def test_no_alternatives_unless_asked_for(tokenizer: Tokenizer) -> None:
    content = LogprobFormat(TokenBytes(tokenizer), alternatives=0).chat([{20: Logprob(-0.9, 1)}]).content
    assert content is not None
    assert content[0].top_logprobs == []


def test_bytes_join_to_the_text(tokenizer: Tokenizer) -> None:
    text = "The \N{SNOWMAN}\N{SNOWMAN} sat"
    (token_ids,) = tokenizer.encode([text])
    write = LogprobFormat(TokenBytes(tokenizer), alternatives=0)
    content = write.chat([{token_id: Logprob(-1.0, 1)} for token_id in token_ids]).content
    assert content is not None
    assert bytes(byte for item in content for byte in item.bytes or ()).decode() == text


def test_minus_infinity_becomes_a_number(tokenizer: Tokenizer) -> None:
    write = LogprobFormat(TokenBytes(tokenizer), alternatives=1)
    content = write.chat([{5: Logprob(-0.1, 1), 6: Logprob(float("-inf"), 2)}, {7: Logprob(float("-inf"), 1)}]).content
    assert content is not None
    assert content[1].logprob == -9999.0
    assert prompt_logprobs([None, {7: Logprob(float("-inf"), 1)}])[1][7].logprob == -9999.0  # type: ignore[index]


def _completion(tokenizer: Tokenizer, text: str, *, as_token_ids: bool = False) -> CompletionLogprobs:
    (token_ids,) = tokenizer.encode([text])
    made = CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])
    write = LogprobFormat(TokenBytes(tokenizer), alternatives=1, as_token_ids=as_token_ids)
    tokens = [None, *({token_id: Logprob(-1.0, 1)} for token_id in token_ids[1:])]
    write.completion(made, token_ids, tokens, TextOffsets(), frozenset())
    return made


def test_text_offsets_count_characters(tokenizer: Tokenizer) -> None:
    made = _completion(tokenizer, "The cat, the dog")
    assert made.text_offset == [0, *accumulate(len(token) for token in made.tokens[:-1])]
    assert "".join(made.tokens) == "The cat, the dog"
    assert made.token_logprobs[0] is None
    assert made.top_logprobs[0] is None
    assert made.top_logprobs[1] == {made.tokens[1]: -1.0}


def test_tokens_of_one_character_share_its_offset(tokenizer: Tokenizer) -> None:
    made = _completion(tokenizer, "a\N{SNOWMAN}b")
    assert len(made.tokens) == 5
    assert made.text_offset == [0, 1, 1, 1, 2]
    assert made.tokens[1:4] == ["bytes:\\xe2", "bytes:\\x98", "bytes:\\x83"]


def test_tokens_as_numbers(tokenizer: Tokenizer) -> None:
    (token_ids,) = tokenizer.encode(["The cat"])
    made = _completion(tokenizer, "The cat", as_token_ids=True)
    assert made.tokens == [f"token_id:{token_id}" for token_id in token_ids]


def test_hidden_tokens_take_no_room(tokenizer: Tokenizer) -> None:
    eos = tokenizer.eos_token_id
    assert eos is not None
    made = CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])
    write = LogprobFormat(TokenBytes(tokenizer), alternatives=0)
    (cat,) = tokenizer.encode(["cat"])
    token_ids = [eos, *cat]
    write.completion(made, token_ids, [{each: Logprob(-1.0, 1)} for each in token_ids], TextOffsets(), frozenset([eos]))
    assert made.text_offset[:2] == [0, 0]
