"""A model outside the tree: a package, made here of the example in docs/add-a-model.md, that announces itself."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from jaxllm import ModelRegistry
from jaxllm.models.errors import ModelError
from jaxllm.models.families import registry
from tests.conftest import RunPython
from tests.models import small

PAGE = Path(__file__).parents[3] / "docs" / "add-a-model.md"
ENTRY = "GranularForCausalLM = my_package.granular:FAMILY"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of Python's path with the package, as pip installs it."""
    page, folder = PAGE.read_text(), tmp_path / "site"
    code = re.search(r"```python\n(# models/families/granular.py.*?)```", page, re.DOTALL)
    assert code is not None
    assert 'GranularForCausalLM = "my_package.granular:FAMILY"' in page
    package, told = folder / "my_package", folder / "my_package-1.0.dist-info"
    package.mkdir(parents=True)
    told.mkdir()
    (package / "__init__.py").touch()
    (package / "granular.py").write_text(code[1])
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text(f"[{registry.ENTRY_POINTS}]\n{ENTRY}\n")
    return folder


def checkpoints(folder: Path) -> list[str]:
    """Paths of one model as the package has it and as Qwen 2 does: biases, and a window on the second layer."""
    values, random = small.tensors(), np.random.default_rng(3)
    for layer in range(2):
        for name, size in (("q", 16), ("k", 8), ("v", 8)):
            bias = random.normal(size=size).astype(np.float32)
            values[f"model.layers.{layer}.self_attn.{name}_proj.bias"] = bias
    shared = {key: value for key, value in small.CONFIG.items() if key != "num_hidden_layers"}
    own = {"architectures": ["GranularForCausalLM"], "n_layer": 2, "sliding_window": 3}
    types = {"layer_types": ["full_attention", "sliding_attention"], "use_sliding_window": True, "sliding_window": 3}
    found = []
    for name, options in {
        "mine": own,
        "like": {"architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 2, **types},
    }.items():
        (folder / name).mkdir()
        found.append(str(small.save(folder / name, values, {**shared, **options})))
    return found


LISTS_AND_GENERATES = """
import json, sys
from jaxllm import LLM, SamplingParams
from jaxllm.serving.cli.main import main
main(["models", "granular"])
greedy = SamplingParams(temperature=0, max_tokens=8, detokenize=False)
options = dict(max_model_len=16, max_num_seqs=1, max_num_batched_tokens=8, enforce_eager=True)
for folder in sys.argv[1:]:
    llm = LLM(folder, skip_tokenizer_init=True, **options)
    print(json.dumps(llm.generate({"prompt_token_ids": [1, 5, 2, 8, 3]}, greedy)[0].outputs[0].token_ids))
"""


def test_an_installed_package_is_listed_and_generates(tmp_path: Path, site: Path, run_python: RunPython) -> None:
    done = run_python("-c", LISTS_AND_GENERATES, *checkpoints(tmp_path), env={"PYTHONPATH": str(site)})
    assert re.search(r"GranularForCausalLM +text", done.stdout), done.stderr
    mine, like = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    assert len(mine) == 8
    assert mine == like


def test_a_path_is_imported_when_the_model_is_asked_for(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_FAMILIES", dict(registry._FAMILIES))
    ModelRegistry.register_model("GranularForCausalLM", "my_package.granular:FAMILY")
    assert "GranularForCausalLM" in ModelRegistry.get_supported_archs()
    with pytest.raises(
        ModelError, match=r"'my_package.granular:FAMILY' for 'GranularForCausalLM' cannot be loaded: No"
    ):
        registry.lookup("GranularForCausalLM")
    monkeypatch.syspath_prepend(site)
    assert registry.lookup("GranularForCausalLM").use == "generate"
    ModelRegistry.register_model("GranularForCausalLM", "my_package.granular:FAMILIES")
    with pytest.raises(ModelError, match="has no attribute 'FAMILIES'"):
        registry.lookup("GranularForCausalLM")
    for path in ("my_package.granular", "my package:FAMILY", ""):
        with pytest.raises(ModelError, match="is not a path to a Family"):
            ModelRegistry.register_model("GranularForCausalLM", path)
