"""Clients that others wrote: each holds one chat and reads one stream."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import RunPython
from tests.serving.openai.conftest import KEY
from tests.serving.server_process import ServerProcess

LANGCHAIN = """
import sys
from langchain_openai import ChatOpenAI

model = ChatOpenAI(model="demo", base_url=sys.argv[1], api_key=sys.argv[2], temperature=0, max_tokens=12, max_retries=0)
whole = model.invoke([("system", "Be brief."), ("human", "What is 2 + 3?")])
assert whole.content and whole.usage_metadata["output_tokens"] > 0, whole
pieces = list(model.stream([("system", "Be brief."), ("human", "What is 2 + 3?")]))
assert len(pieces) > 1 and "".join(piece.content for piece in pieces) == whole.content, pieces
"""

LANGCHAIN_RESPONSES = """
import sys
from langchain_openai import ChatOpenAI

model = ChatOpenAI(
    model="demo", base_url=sys.argv[1], api_key=sys.argv[2], temperature=0, max_tokens=12, max_retries=0,
    use_responses_api=True,
)
question = [("system", "Be brief."), ("human", "What is 2 + 3?")]
whole = model.invoke(question)
assert whole.text and whole.usage_metadata["output_tokens"] > 0, whole
assert whole.response_metadata["id"].startswith("resp_"), whole
pieces = list(model.stream(question))
assert len(pieces) > 1 and "".join(piece.text for piece in pieces) == whole.text, pieces
again = model.invoke([*question, whole, ("human", "And 1 more?")])
assert again.text, again
from pydantic import BaseModel


class add(BaseModel):
    "Adds two numbers."

    a: int
    b: int


longer = model.model_copy(update={"max_tokens": 100})
structured = longer.with_structured_output(add).invoke("Add 12 and 30.")
assert isinstance(structured, add), structured
(call,) = longer.bind_tools([add], tool_choice="add").invoke("Add 12 and 30.").tool_calls
assert call["name"] == "add", call
chained = model.invoke([("human", "And 1 more?")], previous_response_id=whole.response_metadata["id"])
assert chained.text == again.text, (chained, again)
"""

LITELLM = """
import sys
import litellm

question = {
    "model": "openai/demo", "api_base": sys.argv[1], "api_key": sys.argv[2], "temperature": 0, "max_tokens": 12,
    "messages": [{"role": "user", "content": "What is 2 + 3?"}], "num_retries": 0,
}
whole = litellm.completion(**question).choices[0].message.content
pieces = [chunk.choices[0].delta.content or "" for chunk in litellm.completion(**question, stream=True)]
assert whole and len(pieces) > 1 and "".join(pieces) == whole, (whole, pieces)
try:
    litellm.completion(**{**question, "max_tokens": 10**6})
except litellm.ContextWindowExceededError:
    pass
"""

NODE = """
import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: process.argv[3], maxRetries: 0 });
const question = {
  model: "demo", temperature: 0, max_tokens: 12, messages: [{ role: "user", content: "What is 2 + 3?" }],
};
const whole = (await client.chat.completions.create(question)).choices[0].message.content;
let text = "";
for await (const chunk of await client.chat.completions.create({ ...question, stream: true }))
  text += chunk.choices[0].delta.content ?? "";
if (!whole || text !== whole) throw new Error(`${text} is not ${whole}`);
try {
  await client.chat.completions.create({ ...question, temperature: -1 });
  throw new Error("accepted");
} catch (error) {
  if (!(error instanceof OpenAI.BadRequestError) || error.param !== "temperature") throw error;
}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    # Importing LangChain takes most of the time of both of its interfaces.
    [LANGCHAIN + LANGCHAIN_RESPONSES, LITELLM],
    ids=["langchain", "litellm"],
)
def test_python_clients(server: ServerProcess, run_python: RunPython, code: str) -> None:
    # Otherwise litellm asks the network for prices at import.
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    done = run_python("-c", code, f"{server.url}/v1", KEY, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("npm") is None, reason="there is no Node.js")
def test_openais_client_for_node(server: ServerProcess, tmp_path: Path) -> None:
    install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(tmp_path), "openai"]
    installed = subprocess.run(install, capture_output=True, text=True, timeout=300, check=False)
    if installed.returncode != 0:
        pytest.skip(f"npm cannot install openai: {installed.stderr[-300:]}")
    (tmp_path / "client.mjs").write_text(NODE)
    done = subprocess.run(
        ["node", "client.mjs", f"{server.url}/v1", KEY],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
