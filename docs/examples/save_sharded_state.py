"""Saves the weights as the devices hold them, and loads them again without merging or rounding."""

import tempfile
from pathlib import Path

from jaxllm import LLM, SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=24)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        with LLM(model="demo", quantization="int8") as llm:
            llm.save_sharded_state(folder)
            (before,) = llm.generate("Once upon a time", PARAMS)
        print(*sorted(file.name for file in Path(folder).iterdir()), sep="\n")
        with LLM(model=folder, quantization="int8", load_format="sharded_state") as llm:
            (after,) = llm.generate("Once upon a time", PARAMS)
    print("the same:", before.outputs[0].text == after.outputs[0].text)


if __name__ == "__main__":
    main()
