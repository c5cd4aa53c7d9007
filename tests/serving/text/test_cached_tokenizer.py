"""Tokenizers that are read without transformers."""

import json
import shutil
from pathlib import Path

import pytest

from jaxllm.errors import ConfigError
from jaxllm.serving.text.cached_tokenizer import load_quickly
from jaxllm.serving.text.chat import render_chat
from jaxllm.serving.text.tokenizer import Tokenizer
from tests.conftest import RunPython

TEXTS = ["The cat sat on the mat.", "", "emoji 🙂 and 日本語", "<|start|>user\nhello<|end|>", "  two  spaces "]

WITHOUT_TRANSFORMERS = """
import sys
from pathlib import Path
from jaxllm.serving.text.cached_tokenizer import load_quickly
tokenizer = load_quickly(Path(sys.argv[1]), Path(sys.argv[2]))
assert not {"jinja2", "transformers"} & set(sys.modules)
print(tokenizer.encode(["1 + 2 ="]), tokenizer.eos_token_id)
"""

WITHOUT_CLASSES_OF_FAMILIES = """
import sys
from pathlib import Path
from jaxllm.serving.text.cached_tokenizer import load_quickly
from jaxllm.serving.text.chat import render_chat
tokenizer = load_quickly(Path(sys.argv[1]), Path(sys.argv[2]))
print(render_chat(tokenizer, [{"role": "user", "content": "What is 1 + 2?"}]))
assert not {"torch", "transformers.configuration_utils", "transformers.models.auto"} & set(sys.modules)
"""


@pytest.mark.parametrize("name", ["byte_level_folder", "byte_fallback_folder", "demo_folder"])
def test_it_is_the_tokenizer_that_transformers_makes(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    folder = request.getfixturevalue(name)
    whole = Tokenizer.load(folder)
    load_quickly(folder, tmp_path)
    kept = load_quickly(folder, tmp_path)
    assert "whole" not in vars(kept.hf)
    for special in (False, True):
        ids = whole.encode(TEXTS, add_special_tokens=special)
        assert kept.encode(TEXTS, add_special_tokens=special) == ids
        assert kept.decode_batch(ids, skip_special_tokens=special) == whole.decode_batch(
            ids, skip_special_tokens=special
        )
    assert kept.added_tokens == whole.added_tokens
    assert kept.special_ids == whole.special_ids
    assert (kept.size, kept.eos_token_id) == (whole.size, whole.eos_token_id)
    assert kept.hf.chat_template == whole.hf.chat_template


def test_a_second_start_imports_no_transformers(demo_folder: Path, tmp_path: Path, run_python: RunPython) -> None:
    whole = load_quickly(demo_folder, tmp_path)
    done = run_python("-c", WITHOUT_TRANSFORMERS, str(demo_folder), str(tmp_path))
    assert done.stdout.strip() == f"{whole.encode(['1 + 2 ='])} {whole.eos_token_id}", done.stderr


def test_conversations_are_rendered_as_ever(demo_folder: Path, tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "What is 1 + 2?"}]
    first = render_chat(load_quickly(demo_folder, tmp_path), messages)
    assert render_chat(load_quickly(demo_folder, tmp_path), messages) == first
    assert render_chat(Tokenizer.load(demo_folder), messages) == first


def test_templates_have_names_tools_and_the_texts_of_special_tokens(byte_level_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(byte_level_folder, tmp_path / "model")
    settings = folder / "tokenizer_config.json"
    with_tokens = json.loads(settings.read_text()) | {"bos_token": "<s>", "pad_token": "<pad>"}
    settings.write_text(json.dumps(with_tokens))
    text = "{{ bos_token }}{{ pad_token }}{{ extra }}{% for each in messages %}{{ each.content }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(text)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(text + "{{ tools | tojson }}")
    whole = Tokenizer.load(folder)
    load_quickly(folder, tmp_path / "cache")
    cached = load_quickly(folder, tmp_path / "cache")
    messages, tools = [{"role": "user", "content": "hello"}], [{"type": "function", "function": {"name": "f"}}]
    for given in ({}, {"tools": tools}, {"chat_template": "{{ pad_token }}"}, {"chat_template": "tool_use"}):
        for more in ({}, {"bos_token": "<other>", "extra": 1}):
            rendered = render_chat(cached, messages, chat_template_kwargs=more, **given)
            assert rendered == render_chat(whole, messages, chat_template_kwargs=more, **given)
    assert render_chat(cached, messages) == "<s><pad>hello"
    assert "whole" not in vars(cached.hf)


def test_conversations_need_no_class_of_a_family(demo_folder: Path, tmp_path: Path, run_python: RunPython) -> None:
    expected = render_chat(load_quickly(demo_folder, tmp_path), [{"role": "user", "content": "What is 1 + 2?"}])
    done = run_python("-c", WITHOUT_CLASSES_OF_FAMILIES, str(demo_folder), str(tmp_path))
    assert done.stdout == f"{expected}\n", done.stderr


def test_changed_files_are_another_tokenizer(byte_level_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(byte_level_folder, tmp_path / "model")
    before = load_quickly(folder, tmp_path / "cache")
    (folder / "chat_template.jinja").write_text("{{ 'changed' }}")
    after = load_quickly(folder, tmp_path / "cache")
    assert (before.hf.chat_template, after.hf.chat_template) != (None, before.hf.chat_template)
    assert len(list((tmp_path / "cache").iterdir())) == 2


@pytest.mark.parametrize("content", ["", "{}", '{"backend": "{}", "eos_token_id": null, "chat_template": null}'])
def test_a_broken_file_is_replaced(
    content: str, byte_level_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    load_quickly(byte_level_folder, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    assert load_quickly(byte_level_folder, tmp_path).encode(["cat"])
    assert "cannot be used" in caplog.text
    assert file.read_text() != content


def test_errors_are_those_of_the_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"^no tokenizer files"):
        load_quickly(tmp_path, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
