"""Asks about a sound, with a model that hears: `python audio_language.py Qwen/Qwen2-Audio-7B-Instruct`."""

import sys

import numpy as np

from jaxllm import LLM, SamplingParams

RATE = 16_000
"""Samples per second."""


def bell() -> np.ndarray:
    """Two seconds of a bell."""
    seconds = np.arange(2 * RATE) / RATE
    tones = sum(np.sin(2 * np.pi * pitch * seconds) for pitch in (440, 1109, 1760))
    return (0.2 * tones * np.exp(-3 * seconds)).astype(np.float32)


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "Qwen/Qwen2-Audio-7B-Instruct"
    llm = LLM(model=model, max_model_len=1024, limit_mm_per_prompt={"audio": 1})
    sound = {"type": "audio", "audio": (bell(), RATE)}
    question = {"type": "text", "text": "What do you hear?"}
    params = SamplingParams(temperature=0, max_tokens=64)
    (answer,) = llm.chat([{"role": "user", "content": [sound, question]}], params, use_tqdm=False)
    print("heard:", answer.outputs[0].text)


if __name__ == "__main__":
    main()
