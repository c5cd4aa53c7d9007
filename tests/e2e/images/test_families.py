"""Every family that sees: rows of images and answers are those of transformers."""

import copy
import re
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from safetensors.numpy import load_file, save_file
from transformers import AutoTokenizer

from jaxllm import LLM, LoRARequest, SamplingParams
from jaxllm.executor.media_calls import patch_places
from jaxllm.models.adapters.places import Places
from jaxllm.models.causal_lm import CausalLM, abstract_model, checkpoint_names, load_model
from jaxllm.models.checkpoint.checkpoint import Checkpoint
from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.crop import Crop
from jaxllm.models.towers.patches import cut_patches
from jaxllm.models.towers.plan import TowerPlan
from jaxllm.serving.media.checkpoint import ImageModel
from jaxllm.serving.media.text_runs import arrangement_of
from tests.e2e.images.families.case import SeeingCase
from tests.e2e.images.pictures import picture
from tests.models.adapters.trained import save, train
from tests.quick import QUICK
from tests.thinned import thinned


def collected() -> dict[str, SeeingCase]:
    """The cases of all modules in the folder of families."""
    names = sorted(path.stem for path in Path(__file__).with_name("families").glob("*.py"))
    modules = [import_module(f"tests.e2e.images.families.{name}") for name in names]
    return {name: case for module in modules for name, case in getattr(module, "CASES", {}).items()}


CASES = collected()
FEW = (
    "aya vision", "deepseek-ocr 2", "gemma4", "got-ocr 2", "idefics2", "internvl published", "kimi-k2.5",
    "lfm2-vl with experts", "llama 4", "llava", "llava onevision", "minicpm-v", "mistral 3", "paddleocr_vl",
    "phi-3 vision", "phi-4 multimodal", "qwen2_5_vl",
)  # fmt: skip
"""Cases that have every kind of tower, of what becomes a row, of text around rows and of places between them.

Towers are also compared in `tests/models/towers`, and processors in `tests/serving/media/image_processors`.
"""
NAMES = thinned(FEW, [name for name in CASES if name not in FEW])
OF_AUTHORS = ("internvl published",)
"""Their adapters are trained with code of their authors, which calls modules as checkpoints do."""
OF_TEXT = ("input_ids", "attention_mask", "mm_token_type_ids")
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


class Saved:
    """A case in `folder`."""

    def __init__(self, case: SeeingCase, folder: Path, demo: Path) -> None:
        self.case, self.folder = case, folder
        tokenizer = AutoTokenizer.from_pretrained(demo)
        tokenizer.add_special_tokens({"additional_special_tokens": list(case.tokens)})
        self.processor = case.processor(tokenizer)
        self.processor.save_pretrained(folder)
        ids = {token: tokenizer.convert_tokens_to_ids(token) for token in case.tokens}
        torch.manual_seed(0)
        self.model = case.model(case.config(len(tokenizer), ids)).eval()
        for name, parameter in self.model.named_parameters():
            is_norm = "norm" in name and name.endswith("weight") and parameter.ndim == 1
            torch.nn.init.normal_(parameter, mean=float(is_norm), std=case.spread)
        self.model.save_pretrained(folder)

    def images(self) -> list[Any]:
        """One of each size."""
        return [picture(number, *size) for number, size in enumerate(self.case.sizes)]

    def answer(self, text: str, images: list[Any]) -> tuple[list[int], list[int]]:
        """Token ids of the prompt, and of transformers' answer."""
        inputs = self.case.inputs(self.processor, text, images)
        with torch.no_grad():
            found = self.model.generate(
                **inputs, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0
            )  # fmt: skip
        length = inputs["input_ids"].shape[1]
        return found[0, :length].tolist(), found[0, length:].tolist()

    def rows(self, image: Any) -> np.ndarray:
        """Rows of an image, as transformers has them."""
        inputs = self.case.inputs(self.processor, self.case.marker, [image])
        given = {name: value for name, value in inputs.items() if name not in OF_TEXT}
        sees = self.model if hasattr(self.model, "get_image_features") else self.model.model
        with torch.no_grad():
            found = sees.get_image_features(**given)
        # Some are added after the first layers.
        parts = [found.pooler_output, *(getattr(found, "deepstack_features", None) or ())]
        rows = [np.concatenate([each.numpy().reshape(-1, each.shape[-1]) for each in part]) for part in parts]
        return np.concatenate(rows, axis=1)


@pytest.fixture(scope="module")
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, demo_folder: Path) -> Saved:
    return Saved(CASES[request.param], tmp_path_factory.mktemp("family"), demo_folder)


def loaded(folder: Path) -> CausalLM:
    """The model that sees."""
    # Engines on CPUs run layers in a loop, as the answers below are computed.
    options = ForwardOptions(stack="scan", max_model_len=64, sees_images=True)
    config = read_config(folder)
    if isinstance(config.tower, TowerPlan) and not config.tower.sizes:
        config = replace(config, tower=config.tower.sized(256))
    return load_model(Checkpoint(folder), config, options, "float32")


def rows_of(model: CausalLM, folder: Path, image: Any) -> np.ndarray:
    """Rows of an image in place of tokens, from the files of a folder on."""
    tower: Any = model.tower
    graph, parameters = nnx.split(tower)
    merge: Any = nnx.merge
    # Weights are arguments: as constants the compiler would compute with them.
    encode = jax.jit(lambda given, *inputs: merge(graph, given)(*inputs), compiler_options=QUICK)
    found = ImageModel.read(folder)
    image = found.processor.process(np.asarray(image))
    filled = 1 if tower.plan.fill is None else tower.plan.merge
    rows = []
    for pixels in image.crops:
        height, width = (length // tower.plan.vision.patch_size for length in pixels.shape[:2])
        cut = cut_patches(pixels, tower.plan.vision.patch_size, tower.plan.merge, tower.plan.fill)
        patches = tower.plan.whole(cut)
        size = next(each for each in tower.plan.sizes if each >= len(patches))
        padding = ((0, size - len(patches)), (0, 0))
        places = patch_places(height, width, tower.plan.merge)
        crop = Crop(jnp.asarray(np.pad(places, padding)), jnp.array([height, width], jnp.int32), filled)
        encoded = encode(parameters, np.pad(patches, padding), crop)
        rows.append(np.asarray(encoded)[: tower.plan.rows_of(len(patches))])
    arranged = arrangement_of(found.placeholder().runs(image))
    joined = np.concatenate(rows)
    if arranged is None or arranged.weights is None:
        return joined if arranged is None else joined[arranged.rows]
    return np.einsum("rsd,rs->rd", joined[arranged.rows], arranged.weights)


@pytest.mark.parametrize("saved", NAMES, indirect=True)
def test_rows(saved: Saved) -> None:
    model = loaded(saved.folder)
    for image in saved.images():
        wanted = saved.rows(image)
        scale = wanted.std()
        assert scale > 0.1
        np.testing.assert_allclose(rows_of(model, saved.folder, image) / scale, wanted / scale, atol=1e-4, rtol=0)


@pytest.mark.parametrize("saved", [name for name in NAMES if name not in OF_AUTHORS], indirect=True)
def test_modules_that_adapters_are_trained_for(saved: Saved) -> None:
    """Those of the language model have their places. Where the model sees, no other is passed over without a word."""
    linear = [name for name, module in saved.model.named_modules() if isinstance(module, torch.nn.Linear)]
    layers = [name for name in linear if re.search(r"(language_model|text_model|^model)(\.model)?\.layers\.", name)]
    assert layers
    config = read_config(saved.folder)
    for sees in (False, True):
        model = abstract_model(config, ForwardOptions(max_model_len=64, sees_images=sees), "float32")
        places = Places(model, checkpoint_names(config, model.options))
        assert [name for name in layers if places.find(name) not in places.weights] == []
        elsewhere = [name for name in linear if places.find(name) is None and places.is_elsewhere(name)]
        assert bool(elsewhere) is not sees


@pytest.mark.parametrize("saved", [name for name in NAMES if CASES[name].has_answers], indirect=True)
def test_answers(saved: Saved) -> None:
    """All at once, in chunks of 8 tokens unless the family needs more: answers do not depend on it."""
    marker, images = saved.case.marker, saved.images()
    prompts = [(f"Look: {marker} and tell what it is.", [image]) for image in images]
    prompts.append(("".join(f"{number}: {marker} " for number in range(2)), images[:2]))
    options: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 4, "max_num_batched_tokens": 8}
    # Nothing is compiled that these prompts do not need.
    quick = {"optimization_level": 0, "enforce_eager": True}
    with LLM(str(saved.folder), **{**options, **quick, **saved.case.engine}) as llm:
        asked = [{"prompt": text, "multi_modal_data": {"image": given}} for text, given in prompts]
        outputs = llm.generate(asked, GREEDY, use_tqdm=False)
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == len(prompts)
    for (text, given), output in zip(prompts, outputs, strict=True):
        found = list(output.prompt_token_ids or ()), list(output.outputs[0].token_ids)
        assert found == saved.answer(text, given)


@pytest.mark.parametrize("saved", ["llava"], indirect=True)
def test_answers_with_an_adapter(saved: Saved, tmp_path: Path) -> None:
    """Next to the model's own, about the same image: those of PEFT."""
    trained = train(copy.deepcopy(saved.model), target_modules=r".*language_model.*\.(q_proj|o_proj|down_proj)")
    adapted = copy.copy(saved)
    adapted.model = trained
    lora, text = LoRARequest("own", 1, str(save(trained, tmp_path))), f"Look: {saved.case.marker} and tell what it is."
    image = saved.images()[0]
    options: dict[str, Any] = {"max_model_len": 256, "max_num_batched_tokens": 8, "optimization_level": 0}
    slots = {"enable_lora": True, "max_lora_rank": 8, "enforce_eager": True, **saved.case.engine}
    with LLM(str(saved.folder), **options, **slots) as llm:
        asked = [{"prompt": text, "multi_modal_data": {"image": [image]}}] * 2
        outputs = llm.generate(asked, GREEDY, lora_request=[lora, None], use_tqdm=False)
    answers = [list(output.outputs[0].token_ids) for output in outputs]
    assert answers == [each.answer(text, [image])[1] for each in (adapted, saved)]
    assert answers[0] != answers[1]


@pytest.mark.parametrize("saved", [name for name in NAMES if CASES[name].renamed], indirect=True)
def test_other_names(saved: Saved, tmp_path: Path) -> None:
    """Checkpoints of other times have other beginnings of names."""
    image = saved.images()[0]
    for names in saved.case.renamed:
        for path in saved.folder.iterdir():
            if path.name != "model.safetensors" and path.is_file():
                (tmp_path / path.name).write_bytes(path.read_bytes())
        tensors = load_file(saved.folder / "model.safetensors")
        save_file({renamed(name, names): value for name, value in tensors.items()}, tmp_path / "model.safetensors")
        np.testing.assert_array_equal(
            rows_of(loaded(tmp_path), tmp_path, image), rows_of(loaded(saved.folder), saved.folder, image)
        )


def renamed(name: str, names: Mapping[str, str]) -> str:
    """A name with another beginning."""
    old = next((old for old in names if name.startswith(old)), "")
    return names.get(old, "") + name.removeprefix(old)
