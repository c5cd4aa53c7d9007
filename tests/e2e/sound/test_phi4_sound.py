"""Phi-4 multimodal hears: rows of sound, and answers next to those about images, are those of transformers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from transformers import Phi4MultimodalFeatureExtractor

from jaxllm import LLM
from jaxllm.errors import RequestError
from jaxllm.models.causal_lm import load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.errors import ModelError
from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.conformer import ConformerRows
from jaxllm.serving.media.audio.resample import RATE, Samples
from jaxllm.serving.media.audio.speech_mel import SpeechMel
from tests.e2e.images.families import phi4_multimodal, phi4_published
from tests.e2e.images.test_families import GREEDY, Saved
from tests.e2e.sound.chatting import noise
from tests.quick import QUICK

TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}{% if part['type'] == 'image' %}<|image|>"
    "{% elif part['type'] == 'audio' %}<|audio|>{% endif %}{% endfor %}{% endfor %}"
)
EXTRACT = Phi4MultimodalFeatureExtractor()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, demo_folder: Path) -> Saved:
    """With the file that says how sound is processed."""
    found = Saved(phi4_multimodal.CASES["phi-4 multimodal"], tmp_path_factory.mktemp("phi4"), demo_folder)
    scaling = embedding(found).encoder.encoder_embedding
    scaling.global_mean.normal_()
    scaling.global_invstd.uniform_(0.2, 0.4)
    found.model.save_pretrained(found.folder)
    path = found.folder / "processor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "audio_processor": EXTRACT.to_dict()}))
    return found


def embedding(saved: Saved) -> Any:
    """What makes rows of sound."""
    return saved.model.model.embed_tokens_extend.audio_embed


def heard(sounds: list[Samples]) -> dict[str, Any]:
    """Sound as transformers' model takes it. Sounds of other lengths would see zeros after them."""
    return dict(EXTRACT(sounds, sampling_rate=RATE, return_tensors="pt"))


def rows_of(saved: Saved, sound: Samples) -> np.ndarray:
    """Rows of a sound, as transformers has them."""
    embed = embedding(saved)
    with torch.no_grad():
        hidden = embed.encoder(heard([sound])["audio_input_features"], None)
        projected = torch.nn.functional.gelu(embed.up_proj_for_speech(hidden))
        found: np.ndarray = embed.down_proj_for_speech(projected)[0].numpy()
    return found


def answer(saved: Saved, text: str, sounds: list[Samples]) -> tuple[list[int], list[int]]:
    """Token ids of a prompt, and of transformers' answer."""
    given, marker = heard(sounds), saved.case.tokens[1]
    for count in given["audio_embed_sizes"].tolist():
        text = text.replace(marker, "\0" * count, 1)
    tokens = saved.processor.tokenizer(text.replace("\0", marker), return_tensors="pt")
    with torch.no_grad():
        found = saved.model.generate(
            **tokens, **given, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0].tolist()  # fmt: skip
    length = tokens["input_ids"].shape[1]
    return found[:length], found[length:]


def tower_in(folder: Path) -> ConformerRows:
    """What hears in a checkpoint."""
    options = ForwardOptions(stack="scan", max_model_len=64, sees_images=True)
    tower = load_model(Checkpoint(folder), read_config(folder), options, "float32").sound
    assert isinstance(tower, ConformerRows)
    return tower


def test_rows(saved: Saved) -> None:
    """Of sound within a window, and sound of two."""
    tower = tower_in(saved.folder)
    graph, parameters = nnx.split(tower)
    merge: Any = nnx.merge
    hear = jax.jit(lambda given, *inputs: merge(graph, given)(*inputs), compiler_options=QUICK)
    mel = SpeechMel(tower.plan.window_frames, tower.plan.context)
    for seconds in (0.37, 46.5):
        sound = noise(1, seconds)
        wanted = rows_of(saved, sound)
        parts = [
            np.asarray(hear(parameters, jnp.asarray(window), jnp.int32(count)))[: -(-count // 8)]
            for window, count in mel.windows(sound)
        ]
        assert len(parts) == 1 + int(seconds // 40)
        np.testing.assert_allclose(np.concatenate(parts) / wanted.std(), wanted / wanted.std(), atol=1e-4, rtol=0)


def test_published_names(saved: Saved, tmp_path: Path) -> None:
    """The authors' files have the same weights under other names."""
    phi4_published.save(saved.model, tmp_path)
    found, wanted = (nnx.state(tower_in(folder)) for folder in (tmp_path, saved.folder))
    jax.tree.map(np.testing.assert_array_equal, found, wanted)


@pytest.fixture(scope="module")
def llm(saved: Saved) -> Iterator[LLM]:
    made = LLM(
        str(saved.folder), max_model_len=512, max_num_seqs=4, max_num_batched_tokens=8, optimization_level=0,
        enforce_eager=True,
    )  # fmt: skip
    yield made
    made.close()


def test_answers(llm: LLM, saved: Saved) -> None:
    """All at once, in chunks of 8 tokens, next to an image; then one of them alone."""
    marker, short = saved.case.tokens[1], noise(1, 0.6)
    asked: list[tuple[str, list[Samples]]] = [
        (f"Listen: {marker} What is it?", [short]),
        (f"{marker} and {marker}", [noise(2, 1.1), noise(3, 1.1)]),
        (f"Again: {marker}", [short]),
    ]
    prompts: list[Any] = [
        {"prompt": text, "multi_modal_data": {"audio": [(sound, RATE) for sound in sounds]}} for text, sounds in asked
    ]
    (image,), look = saved.images()[:1], f"Look: {saved.case.marker}"
    *outputs, seen = llm.generate([*prompts, {"prompt": look, "multi_modal_data": {"image": image}}], GREEDY)
    outputs += llm.generate(prompts[:1], GREEDY)
    for output, (text, sounds) in zip(outputs, [*asked, asked[0]], strict=True):
        assert (output.prompt_token_ids, output.outputs[0].token_ids) == answer(saved, text, sounds)
    assert (seen.prompt_token_ids, seen.outputs[0].token_ids) == saved.answer(look, [image])
    pool = llm.llm_engine.engine.media.pool  # type: ignore[attr-defined]
    assert (pool.num_queries, pool.num_hits) == (6, 2)


def test_requests_that_it_does_not_take(llm: LLM, saved: Saved) -> None:
    marker, (image,), sound = saved.case.tokens[1], saved.images()[:1], (noise(1, 0.5), RATE)
    both = {"prompt": f"{marker}{saved.case.marker}", "multi_modal_data": {"audio": sound, "image": image}}
    windows = {"prompt": marker, "multi_modal_data": {"audio": (np.zeros((80, 4008), np.float32), 4001)}}
    short = {"prompt": marker, "multi_modal_data": {"audio": (np.zeros(399, np.float32), RATE)}}
    for prompt, words in (
        (both, "cannot be combined"),
        (windows, "from 1 to 4000, and a row for every 8"),
        (short, "too short"),
    ):
        with pytest.raises(RequestError, match=words):
            llm.generate([prompt], GREEDY)
    parts: Any = [{"type": "image_pil", "image_pil": image}, {"type": "audio", "audio": sound}]
    with pytest.raises(RequestError, match="cannot be combined with image"):
        llm.chat([{"role": "user", "content": parts}], GREEDY, chat_template=TEMPLATE)


def test_configurations_that_it_does_not_have(saved: Saved, tmp_path: Path) -> None:
    values = json.loads((saved.folder / "config.json").read_text())
    for change, words in (
        ({"chunk_size": 18}, "'chunk_size' must be -1"),
        ({"bias_symmetric": True}, "'bias_symmetric' must be false"),
        ({"time_reduction": 6}, "'time_reduction' must be a power of two"),
        ({"ext_pw_out_channel": 8}, "'ext_pw_out_channel' must be 16"),
    ):
        audio = {**values["audio_config"], **change}
        (tmp_path / "config.json").write_text(json.dumps({**values, "audio_config": audio}))
        with pytest.raises(ModelError, match=words):
            read_config(tmp_path)
