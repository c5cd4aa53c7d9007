"""Continues a list of prompts."""

from jaxllm import LLM, SamplingParams

PROMPTS = ["Once upon a time", "Mira is", "2 + 3 =", "The red fox"]


def main() -> None:
    llm = LLM(model="demo")
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0.8, top_p=0.95, max_tokens=24, seed=1))
    for output in outputs:
        print(f"{output.prompt!r} -> {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
