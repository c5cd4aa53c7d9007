"""The chat templates that come with the package: each writes its family's prompt."""

from pathlib import Path

import pytest
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from jaxllm.errors import ConfigError
from jaxllm.serving.options.named_templates import NAMED_TEMPLATES
from jaxllm.serving.text.chat import load_chat_template

TALK = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "Add."},
]
BRIEF = [{"role": "system", "content": "Be brief."}, *TALK]
VICUNA = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, detailed, "
    "and polite answers to the user's questions. "
)
ALPACA = "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
# What each makes of TALK.
TALKS = {
    "alpaca": ALPACA + "### Instruction:\nHi\n\n### Response:\nYes?\n\n### Instruction:\nAdd.\n\n### Response:\n",
    "baichuan": "<reserved_102>Hi<reserved_103>Yes?<reserved_102>Add.<reserved_103>",
    "baichuan2": "<reserved_106>Hi<reserved_107>Yes?<reserved_106>Add.<reserved_107>",
    "basic": "HiYes?Add.",
    "chatglm": "[Round 0]\n问：Hi\n答：Yes?\n[Round 1]\n问：Add.\n答：",
    "chatglm2": "[Round 1]\n\n问：Hi\n\n答：Yes?\n\n[Round 2]\n\n问：Add.\n\n答：",
    "chatglm3": "[gMASK]sop<|user|>\n Hi<|assistant|>\n Yes?<|user|>\n Add.<|assistant|>",
    "chatml": (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYes?<|im_end|>\n<|im_start|>user\n"
        "Add.<|im_end|>\n<|im_start|>assistant\n"
    ),
    "deepseek": "<s>User: Hi\n\nAssistant: Yes?</s>User: Add.\n\nAssistant:",
    "falcon": "<s>User: Hi\nAssistant: Yes?\nUser: Add.\nAssistant:",
    "falcon-180b": "<s>User: Hi\nFalcon: Yes?\nUser: Add.\nFalcon:",
    "gemma": (
        "<s><start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\nYes?<end_of_turn>\n"
        "<start_of_turn>user\nAdd.<end_of_turn>\n<start_of_turn>model\n"
    ),
    "internlm": "<s><|User|>:Hi<eoh>\n<|Bot|>:Yes?<eoa>\n<|User|>:Add.<eoh>\n<|Bot|>:",
    "llama-2": "<s>[INST] Hi [/INST] Yes? </s><s>[INST] Add. [/INST]",
    "llama-3": (
        "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>"
        "assistant<|end_header_id|>\n\nYes?<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n"
        "Add.<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "openassistant": "<|prompter|>Hi</s><|assistant|>Yes?</s><|prompter|>Add.</s><|assistant|>",
    "openchat": (
        "<s>GPT4 Correct User: Hi<|end_of_turn|>GPT4 Correct Assistant: Yes?<|end_of_turn|>"
        "GPT4 Correct User: Add.<|end_of_turn|>GPT4 Correct Assistant:"
    ),
    "orion": "<s>Human: Hi\n\nAssistant: </s>Yes?</s>Human: Add.\n\nAssistant: </s>",
    "phi-2": "Instruct: Hi\nOutput: Yes?\nInstruct: Add.\nOutput:",
    "solar": "### User:\nHi\n\n### Assistant:\nYes?\n\n### User:\nAdd.\n\n### Assistant:\n",
    "stablelm": "<|USER|>Hi<|ASSISTANT|>Yes?<|USER|>Add.<|ASSISTANT|>",
    "starchat": "<|user|>\nHi<|end|>\n<|assistant|>\nYes?<|end|>\n<|user|>\nAdd.<|end|>\n<|assistant|>\n",
    "vicuna": VICUNA + "USER: Hi ASSISTANT: Yes?</s>USER: Add. ASSISTANT:",
    "voxtral": "<s>[INST]Hi[/INST]Yes?</s>[INST]Add.[/INST]",
    "xverse": "Human: Hi\n\nAssistant: Yes?</s>Human: Add.\n\nAssistant: ",
    "zephyr": "<|user|>\nHi</s>\n<|assistant|>\nYes?</s>\n<|user|>\nAdd.</s>\n<|assistant|>\n",
}
TALKS["hermes"] = TALKS["chatml"]
# How a prompt with a message of the system begins; the others refuse it.
BRIEFS = {
    "alpaca": "Be brief.\n\n### Instruction:\n",
    "baichuan": "Be brief.<reserved_102>Hi",
    "baichuan2": "Be brief.<reserved_106>Hi",
    "basic": "Be brief.Hi",
    "chatglm3": "[gMASK]sop<|system|>\n Be brief.<|user|>",
    "chatml": "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user",
    "deepseek": "<s>Be brief.\n\nUser: ",
    "falcon": "<s>Be brief.\nUser:",
    "falcon-180b": "<s>System: Be brief.\nUser:",
    "gemma": "<s><start_of_turn>user\nBe brief.\n\nHi",
    "internlm": "<s><|System|>:Be brief.\n<|Us",
    "llama-2": "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi",
    "llama-3": "<s><|start_header_id|>system<|end_header_id|>\n\nBe ",
    "openassistant": "<|system|>Be brief.</s>",
    "openchat": "<s>Be brief.<|end_of_turn|>GPT4",
    "orion": "<s>Be brief.\n\nHuman: ",
    "phi-2": "Be brief.\nInstruct:",
    "solar": "### System:\nBe brief.\n\n#",
    "stablelm": "<|SYSTEM|>Be brief.<|USER|>",
    "starchat": "<|system|>\nBe brief.<|end|>\n<|user|>",
    "vicuna": "Be brief. USER: Hi ",
    "voxtral": "<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]Hi",
    "xverse": "Be brief.\n\nHuman: ",
    "zephyr": "<|system|>\nBe brief.</s>\n<|user|>",
}
BRIEFS["hermes"] = BRIEFS["chatml"]


def rendered(name: str, talk: list[dict[str, str]], **more: object) -> str:
    template = load_chat_template(name)
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    text = PreTrainedTokenizerBase().apply_chat_template(
        talk, chat_template=template, tokenize=False, add_generation_prompt=True, **{**tokens, **more}
    )
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("name", NAMED_TEMPLATES)
def test_prompts(name: str) -> None:
    assert rendered(name, TALK) == TALKS[name]
    if name in BRIEFS:
        assert rendered(name, BRIEF).startswith(BRIEFS[name])
    else:
        with pytest.raises(TemplateError, match="user and assistant, not system"):
            rendered(name, BRIEF)


@pytest.mark.parametrize("name", NAMED_TEMPLATES)
def test_models_without_the_tokens_that_a_template_names(name: str) -> None:
    assert "None" not in rendered(name, TALK, bos_token=None, eos_token=None)


def test_a_server_reads_calls_as_the_template_shows_them() -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    text = rendered("hermes", TALK, tools=tools)
    assert '"name": "add"' in text.partition("<tools>")[2]
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    said = [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": "2"}]
    text = rendered("hermes", [*TALK, *said])  # type: ignore[list-item]
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>' in text
    assert "<|im_start|>user\n<tool_response>\n2\n</tool_response><|im_end|>" in text


def test_names_come_before_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vicuna").write_text("mine")
    assert load_chat_template("./vicuna") == "mine"
    assert load_chat_template("vicuna") != "mine"
    with pytest.raises(ConfigError, match=r"'vicunna' is neither.*chatml.*did you mean 'vicuna'"):
        load_chat_template("vicunna")


def test_the_documentation_has_all_names() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "chat_templates.md").read_text()
    table = "\n".join(["| name | models |", "|---|---|", *(f"| `{n}` | {m} |" for n, m in NAMED_TEMPLATES.items()), ""])
    assert table in page, f"docs/chat_templates.md should have this table:\n{table}"
