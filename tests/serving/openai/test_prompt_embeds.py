"""Embeddings as prompts of /v1/completions, with OpenAI's client, in the files that `torch` and others write."""

import io
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from openai import BadRequestError, OpenAI

from tests.serving.openai.conftest import MAX_MODEL_LEN

TEXT = "Once upon a time there was a little"


@pytest.fixture(scope="module")
def table(demo_folder: Path) -> torch.Tensor:
    found: torch.Tensor = safetensors.torch.load_file(demo_folder / "model.safetensors")["model.embed_tokens.weight"]
    return found.float()


@pytest.fixture(scope="module")
def as_text(client: OpenAI) -> Any:
    return complete(client, prompt=TEXT, return_token_ids=True)


@pytest.fixture(scope="module")
def rows(table: torch.Tensor, as_text: Any) -> torch.Tensor:
    return table[as_text.choices[0].prompt_token_ids]


def complete(client: OpenAI, prompt: Any = None, **body: Any) -> Any:
    return client.completions.create(model="demo", prompt=prompt, max_tokens=6, temperature=0, extra_body=body)


def of_torch(tensor: Any) -> str:
    file = io.BytesIO()
    torch.save(tensor, file)
    return b64encode(file.getvalue()).decode()


def of_numpy(array: np.ndarray) -> str:
    file = io.BytesIO()
    np.save(file, array)
    return b64encode(file.getvalue()).decode()


def of_safetensors(**tensors: torch.Tensor) -> str:
    return b64encode(safetensors.torch.save(tensors)).decode()


def test_files(client: OpenAI, as_text: Any, rows: torch.Tensor) -> None:
    files = {
        "torch": of_torch(rows),
        "torch, of a module": of_torch(torch.nn.Embedding.from_pretrained(rows, freeze=False)(torch.arange(len(rows)))),
        "torch, bfloat16": of_torch(rows.bfloat16()),
        "torch, a batch": of_torch(rows[None]),
        "torch, in another order": of_torch(rows.T.contiguous().T),
        "torch, a part": of_torch(torch.cat([rows, rows], dim=1)[:, 128:]),
        "numpy": of_numpy(rows.numpy()),
        "numpy, float16": of_numpy(rows.numpy().astype(np.float16)),
        "numpy, float64": of_numpy(rows.double().numpy()),
        "numpy, in another order": of_numpy(np.asfortranarray(rows.numpy())),
        "safetensors": of_safetensors(a=rows),
        "safetensors, bfloat16": of_safetensors(a=rows.bfloat16()),
    }
    for name, file in files.items():
        answer = complete(client, prompt_embeds=file)
        assert answer.choices[0].text == as_text.choices[0].text, name
        assert answer.usage.prompt_tokens == len(rows), name


def test_several_and_text_beside_them(client: OpenAI, as_text: Any, rows: torch.Tensor) -> None:
    embeds = of_torch(rows)
    other = complete(client, prompt_embeds=of_torch(rows[:4])).choices[0].text
    answer = complete(client, ["Mira is", TEXT], prompt_embeds=[of_torch(rows[:4]), embeds], return_token_ids=True)
    texts = [choice.text for choice in answer.choices]
    assert [texts[0], texts[1], texts[3]] == [other, as_text.choices[0].text, as_text.choices[0].text]
    assert answer.choices[0].prompt_token_ids == [0] * 4
    stream = client.completions.create(
        model="demo", prompt=None, max_tokens=6, temperature=0, stream=True, logprobs=1, n=2,
        extra_body={"prompt_embeds": embeds},
    )  # fmt: skip
    pieces = ["", ""]
    for chunk in stream:
        pieces[chunk.choices[0].index] += chunk.choices[0].text
    assert pieces == [as_text.choices[0].text] * 2
    cut = complete(client, prompt_embeds=of_torch(torch.cat([rows[:3], rows])), truncate_prompt_tokens=len(rows))
    assert cut.choices[0].text == as_text.choices[0].text
    assert complete(client, TEXT, prompt_embeds=[]).choices[0].text == as_text.choices[0].text


BAD: list[tuple[Any, str]] = [
    ("invalid_base64", "not base64"),
    (b64encode(b"something").decode(), "not a torch.save"),
    ("", "not a torch.save"),
    (of_torch({"a": torch.zeros(3, 128)}), "not contain exactly one tensor"),
    (of_torch([torch.zeros(3, 128)]), "does not belong in a state dict"),
    (of_torch(torch.zeros(3, 128).to_sparse()), "does not belong in"),
    (of_torch(torch.zeros(3, 64)), "rows have 64 values, but the model's embeddings have 128"),
    (of_torch(torch.zeros(128)), "one of shape [128]"),
    (of_torch(torch.zeros(2, 3, 128)), "one of shape [2, 3, 128]"),
    (of_torch(torch.zeros(0, 128)), "the prompt is empty"),
    (of_torch(torch.zeros(3, 128, dtype=torch.int64)), "type I64"),
    (of_torch(torch.eye(3, 128).fill_diagonal_(float("nan"))), "value 0 of row 0 is not finite"),
    (of_torch(torch.full((3, 128), 1e300, dtype=torch.float64)), "is not finite in float32"),
    (of_numpy(np.array([None], dtype=object)), "not object"),
    (of_numpy(np.zeros((3, 128), np.int32)), "not int32"),
    (of_safetensors(a=torch.zeros(3, 128), b=torch.zeros(1)), "must have one tensor, not 2"),
    (of_safetensors(a=torch.zeros(3, 128, dtype=torch.int8)), "not I8"),
    # What a small file says is large.
    (of_torch(torch.zeros(1, 1).expand(10**12, 128)), "repeats its 1 values"),
    ([of_torch(torch.zeros(3, 128)), "x"], "prompt 1: prompt_embeds: not base64"),
]


@pytest.mark.parametrize(("value", "message"), BAD, ids=[message for _, message in BAD])
def test_bad_files(client: OpenAI, value: Any, message: str) -> None:
    with pytest.raises(BadRequestError) as raised:
        complete(client, prompt_embeds=value)
    assert message in raised.value.message


def test_what_does_not_go_together(client: OpenAI, rows: torch.Tensor) -> None:
    embeds = of_torch(rows)
    for name, value in {"echo": True, "prompt_logprobs": 1}.items():
        with pytest.raises(BadRequestError, match="cannot be combined with prompt_embeds") as raised:
            complete(client, prompt_embeds=embeds, **{name: value})
        assert raised.value.param == name
    with pytest.raises(BadRequestError, match="this field is required") as raised:
        complete(client)
    assert raised.value.param == "prompt"
    with pytest.raises(BadRequestError, match=f"max_model_len={MAX_MODEL_LEN}"):
        complete(client, prompt_embeds=of_torch(torch.zeros(MAX_MODEL_LEN, 128)))
