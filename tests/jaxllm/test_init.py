import ast
import sys
from importlib import import_module
from pathlib import Path

import pytest

import jaxllm
from tests.conftest import RunPython


def test_every_export_can_be_imported() -> None:
    for name in jaxllm.__all__:
        assert getattr(jaxllm, name) is not None
        assert name in dir(jaxllm)


def test_type_checkers_and_the_interpreter_see_the_same_exports() -> None:
    tree = ast.parse(Path(jaxllm.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    typed = {name.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert typed == jaxllm._EXPORTS
    assert set(jaxllm.__all__) == {*typed, "__version__"}
    for name, module in jaxllm._EXPORTS.items():
        assert getattr(import_module(module), name) is getattr(jaxllm, name)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'LLLM'"):
        jaxllm.LLLM  # noqa: B018


def test_import_loads_only_the_standard_library(run_python: RunPython) -> None:
    code = "import sys; before = set(sys.modules); import jaxllm; print(*(set(sys.modules) - before))"
    loaded = set(run_python("-c", code).stdout.split())
    assert {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names} == {"jaxllm"}


def test_sampling_params_need_no_device(run_python: RunPython) -> None:
    result = run_python("-c", "import sys; from jaxllm import SamplingParams, EngineConfig; print(*sys.modules)")
    assert result.returncode == 0, result.stderr
    assert not {"jax", "flax", "transformers", "torch"} & set(result.stdout.split())
