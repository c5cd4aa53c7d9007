"""Chat templates that come with the package, for models that have none."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

NAMED_TEMPLATES: Final[Mapping[str, str]] = {
    "alpaca": "Alpaca, and models tuned on its instructions",
    "baichuan": "Baichuan-13B-Chat",
    "baichuan2": "Baichuan2 Chat",
    "basic": "base models (GPT-2, OPT, BLOOM, Pythia, StarCoder2): contents alone",
    "chatglm": "ChatGLM-6B",
    "chatglm2": "ChatGLM2-6B",
    "chatglm3": "ChatGLM3-6B",
    "chatml": "Qwen-Chat, MPT-Chat, and many others",
    "deepseek": "DeepSeek LLM Chat, DeepSeek-V2-Chat",
    "falcon": "Falcon-7B and 40B Instruct",
    "falcon-180b": "Falcon-180B-Chat",
    "gemma": "Gemma 1 to 3",
    "hermes": "chatml with tools, as Hermes 2 Pro",
    "internlm": "InternLM 1 Chat",
    "llama-2": "Llama 2 Chat, Mistral Instruct v0.1",
    "llama-3": "Llama 3 Instruct",
    "openassistant": "OpenAssistant's Pythia and Falcon",
    "openchat": "OpenChat 3.5",
    "orion": "Orion-14B-Chat",
    "phi-2": "Phi-1.5, Phi-2",
    "solar": "SOLAR-10.7B-Instruct",
    "stablelm": "StableLM-Tuned-Alpha",
    "starchat": "StarChat (StarCoder)",
    "vicuna": "Vicuna v1.1 to v1.5",
    "voxtral": "Voxtral, with sound",
    "xverse": "XVERSE Chat",
    "zephyr": "Zephyr, StableLM Zephyr, TinyLlama Chat",
}
"""Names, and the models whose format it is."""

_FOLDER = Path(__file__).parent / "chat_templates"


def named_template(name: str) -> str | None:
    """The Jinja text of the template of this name; None: there is none."""
    if name not in NAMED_TEMPLATES:
        return None
    return (_FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
