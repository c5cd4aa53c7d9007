"""Classes of logits processors are found by what options say, and what is wrong with that is told."""

import copy
import pickle
from importlib import metadata
from typing import Any

import pytest

from jaxllm.config import EngineConfig
from jaxllm.config.processor_names import ClassName
from jaxllm.errors import ConfigError
from jaxllm.processors.host import HostProcessor
from jaxllm.processors.interface import JaxLogitsProcessor, LogitsProcessor
from jaxllm.processors.loading import load_classes
from jaxllm.requests.sampling_params import SamplingParams

HERE = "jaxllm.processors.interface"


def loaded(given: Any) -> tuple[type, ...]:
    return load_classes(EngineConfig.from_options({"logits_processors": given}).output.logits_processors)


class Everyone(LogitsProcessor):
    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        assert (device, is_pin_memory) == ("cpu", False)

    def update_state(self, batch_update: Any) -> None:
        pass

    def apply(self, logits: Any) -> Any:
        return logits


class Broken(Everyone):
    def __init__(self, *_: Any) -> None:
        raise OSError("no table")


def test_by_class_by_name_and_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    class Local(Everyone):
        """In a function: no name leads to it."""

    name = f"{HERE}:LogitsProcessor"
    assert loaded([Local, name, LogitsProcessor]) == (Local, LogitsProcessor, LogitsProcessor)
    given = ClassName(LogitsProcessor)
    assert copy.copy(given) is given
    assert type(pickle.loads(pickle.dumps(given))) is str
    assert pickle.loads(pickle.dumps(given)) == name
    assert loaded(name) == loaded((name,)) == (LogitsProcessor,)
    assert loaded(None) == loaded([]) == ()
    point = metadata.EntryPoint("mine", name, "vllm.logits_processors")
    found = {("vllm.logits_processors", "mine"): [point], ("vllm.logits_processors", None): [point]}
    monkeypatch.setattr(metadata, "entry_points", lambda group, name=None: found.get((group, name), []))
    assert loaded("mine") == (LogitsProcessor,)
    with pytest.raises(ConfigError, match=r"'yours': expected package.module:Class.*installed: mine"):
        loaded("yours")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("no_such_module:Class", "ModuleNotFoundError"),
        (f"{HERE}:Nothing", "AttributeError"),
        (f"{HERE}:process_dict_updates", "not a class"),
        ("collections:OrderedDict", "lacks apply, update_state, is_argmax_invariant"),
        ("__main__:Nothing", "importable module"),
        ([3], "expected a list of strings"),
    ],
)
def test_what_is_wrong_is_told(given: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        loaded(given)


@pytest.mark.parametrize("shape", [3, [3], (-1,), (1.0,)])
def test_a_compiled_one_with_a_wrong_shape(shape: Any) -> None:
    with pytest.raises(ConfigError, match="must be a tuple of integers"):
        loaded(type("Wrong", (JaxLogitsProcessor,), {"shape": shape}))


def test_a_class_that_cannot_be_made() -> None:
    with pytest.raises(ConfigError, match="Broken': OSError: no table"):
        HostProcessor(Broken, EngineConfig())
    everyone = HostProcessor(Everyone, EngineConfig())
    assert everyone.uses(SamplingParams())
    assert not everyone.is_argmax_invariant
