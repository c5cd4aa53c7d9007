"""A real notebook kernel, whose event loop is running already, with the engine in a process of its own."""

import warnings
from pathlib import Path

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import nbformat
    from nbclient import NotebookClient

CELLS = [
    "from jaxllm import LLM, SamplingParams",
    "llm = LLM(background_engine=True, optimization_level=0, max_num_seqs=4, max_num_batched_tokens=16)",
    "llm.generate('Once upon a time', SamplingParams(temperature=0, max_tokens=4), use_tqdm=False)[0]",
    "llm.generate('', use_tqdm=False)",
    "def ask(temperature):\n    return SamplingParams(temperature=temperature)\nask(-1)",
    "LLM('./no such folder')",
    "%env JAXLLM_FULL_TRACEBACKS=1",
    "ask(-1)",
    "llm.close()",
]


@pytest.mark.filterwarnings("ignore")
def test_a_notebook(tmp_path: Path) -> None:
    make_cell = nbformat.v4.new_code_cell
    notebook = nbformat.v4.new_notebook(cells=[make_cell(source) for source in CELLS])
    folder = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", allow_errors=True, resources=folder).execute()
    (result,) = [output for output in notebook.cells[2].outputs if output.output_type == "execute_result"]
    assert "<table>" in result.data["text/html"]
    assert "Once upon a time" in result.data["text/html"]
    seen = [
        "\n".join(each.traceback) for cell in notebook.cells for each in cell.outputs if each.output_type == "error"
    ]
    empty, negative, missing, full = seen
    assert (
        empty
        == "RequestError: the prompt is empty: give at least one token\n  line 1: llm.generate('', use_tqdm=False)"
    )
    assert negative == (
        "RequestError: temperature=-1: must be a finite number of at least 0\n"
        "  line 2: return SamplingParams(temperature=temperature)"
    )
    assert missing.startswith("ConfigError: model './no such folder': no such folder")
    assert len(missing.splitlines()) == 2
    assert "checked_names.py" in full
    assert len(full.splitlines()) > 20
