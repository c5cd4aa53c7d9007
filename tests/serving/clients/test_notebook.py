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
    "llm.close()",
]


@pytest.mark.filterwarnings("ignore")
def test_a_notebook(tmp_path: Path) -> None:
    make_cell = nbformat.v4.new_code_cell
    notebook = nbformat.v4.new_notebook(cells=[make_cell(source) for source in CELLS])
    folder = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=folder).execute()
    (result,) = [output for output in notebook.cells[2].outputs if output.output_type == "execute_result"]
    assert "<table>" in result.data["text/html"]
    assert "Once upon a time" in result.data["text/html"]
