"""A message that is lost is noticed by the one after it."""

import numpy as np
import pytest

from jaxllm.requests.owners import NOBODY
from jaxllm.serving.ipc.messages import Abort, Add, ToEngine
from jaxllm.serving.ipc.wire import FrameDecoder, FrameEncoder, LostMessageError, NumberedDecoder, NumberedEncoder


def test_messages_arrays_and_credit_arrive() -> None:
    encoder, decoder = NumberedEncoder(FrameEncoder()), NumberedDecoder[ToEngine](FrameDecoder(ToEngine))
    prompt = np.arange(1000, dtype=np.int32)
    got = decoder.decode(encoder.encode(Add(prompt, [], 0, None, (), NOBODY), taken=5))
    assert isinstance(got, Add)
    np.testing.assert_array_equal(got.prompt_token_ids, prompt)
    assert decoder.taken == 5
    assert decoder.decode(encoder.encode(Abort(["a"]), taken=6)) == Abort(["a"])
    assert (encoder.sent, decoder.heard, decoder.taken) == (2, 2, 6)


def test_a_gap_and_a_repetition_are_errors() -> None:
    encoder, decoder = NumberedEncoder(FrameEncoder()), NumberedDecoder[ToEngine](FrameDecoder(ToEngine))
    first, _lost, third = (encoder.encode(Abort([name])) for name in "abc")
    decoder.decode(first)
    with pytest.raises(LostMessageError, match="message 1 was lost: received message 2"):
        decoder.decode(third)
    with pytest.raises(LostMessageError):
        decoder.decode(first)
