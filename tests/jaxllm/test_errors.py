"""A script's traceback shows the caller's mistake."""

import traceback

import pytest

from jaxllm import LLM, ConfigError, RequestError, SamplingParams, StructuredOutputsParams


def frames(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def test_a_mistake_shows_the_callers_line_and_no_internals() -> None:
    for make in (
        lambda: SamplingParams(temperature=-1),
        lambda: SamplingParams(temperatur=1),  # type: ignore[call-arg]
        lambda: StructuredOutputsParams(json="{"),
    ):
        with pytest.raises(RequestError) as wrong:
            make()
        assert frames(wrong.value) == ["test_a_mistake_shows_the_callers_line_and_no_internals", "<lambda>", "__call__"]
        assert "During handling" not in "".join(traceback.format_exception(wrong.value))
    with pytest.raises(ConfigError, match="did you mean 'max_model_len'") as option:
        LLM(max_model_length=5)
    assert len(frames(option.value)) == 2


def test_everything_is_shown_to_who_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXLLM_FULL_TRACEBACKS", "1")
    with pytest.raises(RequestError) as error:
        SamplingParams(temperature=-1)
    assert "validate" in frames(error.value)
    assert not hasattr(error.value, "_render_traceback_")
    monkeypatch.setenv("JAXLLM_FULL_TRACEBACKS", "0")
    assert error.value._render_traceback_()[0] == f"RequestError: {error.value}"
