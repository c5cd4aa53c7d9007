"""Loading: model and tokenizer belong together, and nothing stays behind when they do not."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from jaxllm import LLM, ConfigError, RequestError, SamplingParams


@pytest.fixture
def model_folder(byte_level_folder: Path, tmp_path: Path) -> Path:
    """A model folder as far as text goes: the engine itself is scripted."""
    folder = shutil.copytree(byte_level_folder, tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.25, "eos_token_id": 9}))
    return folder


@pytest.fixture
def engine(scripted_engine: type, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Stands in for `Engine.from_config`; every request generates the token 8 for ever."""

    scripted = scripted_engine(lambda request: iter(lambda: 8, None))

    def load(config: Any, progress: Any) -> Any:
        progress("Loading weights", 1, 2)
        progress("Loading weights", 2, 2)
        scripted.info = replace(scripted.info, model_folder=config.model.model, max_logprobs=config.output.max_logprobs)
        return scripted

    monkeypatch.setattr("jaxllm.load.load_engine", load)
    return scripted


def test_text_limits_and_defaults_of_the_model(engine: Any, model_folder: Path) -> None:
    with LLM(str(model_folder), max_logprobs=3) as llm:
        (output,) = llm.generate("the cat", SamplingParams(max_tokens=2), use_tqdm=False)
        assert output.outputs[0].token_ids == [8, 8]
        assert engine.added[0].eos_token_ids == (9, 2)
        assert llm.get_default_sampling_params() == SamplingParams(temperature=0.25)
        with pytest.raises(RequestError, match="max_model_len=32"):
            llm.generate([[5] * 32])
        with pytest.raises(RequestError, match="logprobs=4"):
            llm.generate([[5]], SamplingParams(logprobs=4))


def test_a_tokenizer_of_its_own(engine: Any, model_folder: Path, byte_fallback_folder: Path, tmp_path: Path) -> None:
    engine.info = replace(engine.info, vocab_size=500)
    llm = LLM(str(model_folder), tokenizer=str(byte_fallback_folder))
    assert llm.get_tokenizer().decode(llm.get_tokenizer().encode("the cat")) == "the cat"
    with pytest.raises(ConfigError, match=r"^tokenizer: "):
        LLM(str(model_folder), tokenizer=str(tmp_path / "missing"))


def test_a_tokenizer_too_large_for_the_model(engine: Any, model_folder: Path) -> None:
    engine.info = replace(engine.info, vocab_size=359)
    with pytest.raises(ConfigError, match=r"token IDs up to 359, but the model's vocabulary ends at 358.*tokenizer="):
        LLM(str(model_folder))
    assert engine.closed, "the engine was left behind"


def test_no_tokenizer(engine: Any, model_folder: Path) -> None:
    (model_folder / "tokenizer.json").unlink()
    (model_folder / "tokenizer_config.json").unlink()
    loaded = engine.info
    with pytest.raises(ConfigError, match="no tokenizer files"):
        LLM(str(model_folder))
    assert engine.info is loaded, "weights were loaded before the tokenizer was looked for"
    llm = LLM(str(model_folder), skip_tokenizer_init=True)
    (output,) = llm.generate([[5]], SamplingParams(max_tokens=3), use_tqdm=False)
    assert (output.outputs[0].token_ids, output.outputs[0].text) == ([8, 8, 8], "")
    with pytest.raises(RequestError, match="tokenizer"):
        llm.generate("text")
    with pytest.raises(RequestError, match="tokenizer"):
        llm.chat([{"role": "user", "content": "x"}])


def test_loading_shows_bars_only_when_watched(
    engine: Any, model_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another test may have imported it; in a notebook somebody watches.
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    LLM(str(model_folder))
    assert capsys.readouterr().err == ""
    LLM(str(model_folder), show_progress=True)
    assert "Loading weights: 100%" in capsys.readouterr().err
