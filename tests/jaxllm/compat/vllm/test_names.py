"""Names are found where vLLM has them, and are those of `jaxllm` itself."""

import pkgutil
import subprocess
import sys
from importlib import import_module

import pytest

import jaxllm
import jaxllm.compat.vllm.modules as names
from tests.conftest import RunPython

PREFIX = names.__name__ + "."
MODULES = [each.name.removeprefix(PREFIX) for each in pkgutil.walk_packages(names.__path__, PREFIX)]


@pytest.mark.parametrize("module", MODULES)
def test_every_module_is_found_under_its_short_name(module: str) -> None:
    found = import_module(f"jaxllm.{module}")
    for name in getattr(found, "__all__", ()):
        value = getattr(found, name)
        if name in jaxllm.__all__ and name != "AsyncLLM":
            assert value is getattr(jaxllm, name)


def test_names_that_are_imported_when_asked_for() -> None:
    from jaxllm.outputs import RequestOutput
    from jaxllm.sampling_params import BeamSearchParams, GuidedDecodingParams, RequestOutputKind

    assert RequestOutput is jaxllm.RequestOutput
    assert BeamSearchParams is jaxllm.BeamSearchParams
    assert GuidedDecodingParams is jaxllm.StructuredOutputsParams
    assert jaxllm.RequestOutputKind is RequestOutputKind
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        from jaxllm.outputs import Nothing  # noqa: F401


def test_the_top_has_what_vllms_top_has() -> None:
    """Of vLLM 0.33, but for what starts a cluster of Ray."""
    wanted = {
        "AsyncEngineArgs", "AsyncLLMEngine", "ClassificationOutput", "ClassificationRequestOutput", "CompletionOutput",
        "EmbeddingOutput", "EmbeddingRequestOutput", "EngineArgs", "LLM", "LLMEngine", "ModelRegistry", "PoolingOutput",
        "PoolingParams", "PoolingRequestOutput", "PromptType", "RequestOutput", "SamplingParams", "ScoringOutput",
        "ScoringRequestOutput", "TextPrompt", "TokensPrompt", "__version__",
    }  # fmt: skip
    assert wanted <= set(jaxllm.__all__)


def test_the_servers_module_is_the_command(run_python: RunPython) -> None:
    result = run_python("-m", "jaxllm.entrypoints.openai.api_server", "--model", "demo", "--max-num-seqs", "many")
    assert result.returncode == 2
    assert "jaxllm serve" in result.stderr
    assert "'many' is not an integer" in result.stderr


def test_vectors_in_bytes_are_tensors_again() -> None:
    import numpy as np
    import torch

    from jaxllm.entrypoints.pooling.utils import build_metadata_items, decode_pooling_output
    from jaxllm.serving.openai.pooling.vectors import VectorFormat
    from jaxllm.serving.openai.protocol.pooling import EmbeddingRequest
    from jaxllm.utils.serial_utils import EMBED_DTYPES, ENDIANNESS

    values = np.array([[0.5, -1.25, 3.0], [1.0, 0.0625, -2.0]], np.float32)
    for name in EMBED_DTYPES:
        for order in ENDIANNESS:
            body = EmbeddingRequest(input="x", encoding_format="bytes", embed_dtype=name, endianness=order)
            data = b"".join(VectorFormat(body).bytes(each) for each in values)
            items = build_metadata_items(name, order, (3,), n_request=2)
            found = decode_pooling_output(items[::-1], data)
            wanted = torch.tensor(values).to(found[0].dtype)
            assert name.removeprefix("fp8_") in str(found[0].dtype)
            assert torch.equal(torch.stack(found).float(), wanted.float())


def test_little_things(capsys: pytest.CaptureFixture[str]) -> None:
    from jaxllm.platforms import current_platform
    from jaxllm.utils import random_uuid
    from jaxllm.utils.network_utils import get_ip, get_open_port
    from jaxllm.utils.print_utils import print_embeddings

    assert current_platform.is_cpu()
    assert not current_platform.is_rocm()
    assert current_platform.device_count() >= 1
    assert len(random_uuid()) == 16
    assert random_uuid() != random_uuid()
    assert 0 < get_open_port() < 2**16
    assert get_ip().count(".") == 3
    print_embeddings([0.5] * 6)
    assert capsys.readouterr().out == "Embeddings: [0.5, 0.5, 0.5, 0.5, ...] (size=6)\n"


def test_the_platform_is_known_without_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    # A process that is forked from one in which JAX runs hangs.
    program = (
        "import sys; from jaxllm.platforms import current_platform as p; "
        "print(p.is_cpu(), p.is_rocm(), p.is_cuda(), p.is_tpu(), p.is_xpu(), 'jax' in sys.modules)"
    )
    for platforms, wanted in (
        ("cpu", "True False False False False False"),
        ("cuda,cpu", "False False True False False False"),
        ("rocm", "False True False False False False"),
        ("tpu,cpu", "False False False True False False"),
    ):
        monkeypatch.setenv("JAX_PLATFORMS", platforms)
        assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == wanted


def test_what_jax_was_told_comes_before_the_environment(run_python: RunPython) -> None:
    program = (
        "import jax; jax.config.update('jax_platforms', 'cpu'); from jaxllm.platforms import current_platform as p; "
        "print(p.device_type)"
    )
    assert run_python("-c", program, env={"JAX_PLATFORMS": "cuda"}).stdout.strip() == "cpu"


def test_device_files_tell_what_jax_would_find(monkeypatch: pytest.MonkeyPatch) -> None:
    from jaxllm.compat.vllm.modules import platforms

    installed = {"libtpu", "jax_cuda13_plugin"}
    monkeypatch.setattr(platforms, "find_spec", lambda name: name if name in installed else None)
    for files, wanted in (
        ([], "cpu"), (["/dev/vfio/0"], "tpu"), (["/dev/nvidia0"], "gpu"), (["/dev/dxg"], "gpu")
    ):  # fmt: skip
        monkeypatch.setattr(platforms, "device_files", lambda found=files: found)
        assert platforms._visible_platform() == wanted
    installed.clear()
    assert platforms._visible_platform() == "cpu"


def test_models_can_be_listed_and_are_not_torchs() -> None:
    assert "LlamaForCausalLM" in jaxllm.ModelRegistry.get_supported_archs()
    with pytest.raises(jaxllm.ConfigError, match="not a PyTorch class"):
        jaxllm.ModelRegistry.register_model("Mine", object)


def test_options_that_are_objects_are_dictionaries() -> None:
    from jaxllm.config import CompilationConfig, KVTransferConfig, PoolerConfig, ProfilerConfig, VllmConfig

    args = jaxllm.EngineArgs(
        pooler_config=PoolerConfig(task="embed"),
        compilation_config=CompilationConfig(mode=3),
        profiler_config=ProfilerConfig(profiler="torch", torch_profiler_dir="traces"),
    )
    config: VllmConfig = args.create_engine_config()
    assert config.model.pooler_config == {"task": "embed"}
    assert config.profiling.profiler_dir == "traces"
    transfer = KVTransferConfig(kv_connector="NixlConnector", kv_role="kv_both")
    made = jaxllm.EngineArgs(kv_transfer_config=transfer).create_engine_config()
    assert made.cache.kv_transfer is not None
    assert made.cache.kv_transfer.role == "kv_both"
    with pytest.raises(AttributeError, match="PoolerConfig: 'pooling_type' is not set"):
        PoolerConfig().pooling_type  # noqa: B018


def test_loggers_written_for_vllm_can_be_made() -> None:
    from jaxllm.v1.metrics.loggers import StatLoggerBase

    class Mine(StatLoggerBase):
        def __init__(self, vllm_config: object, engine_index: int = 0) -> None:
            super().__init__(vllm_config, engine_index)
            self.engine_index = engine_index

        def record(self, scheduler_stats: object, iteration_stats: object, engine_idx: int = 0) -> None:
            super().record(scheduler_stats, iteration_stats, engine_idx=engine_idx)

    mine = Mine(None, 1)
    mine.log_engine_initialized()
    mine.record(None, None, 1)
    mine.log()
    assert mine.engine_index == 1
