"""Holds the weights in 8 bits, which takes a quarter of the memory of 32-bit weights."""

from jaxllm import LLM, SamplingParams


def main() -> None:
    llm = LLM(model="demo", quantization="int8")
    (output,) = llm.generate("Once upon a time", SamplingParams(temperature=0, max_tokens=24))
    print(output.outputs[0].text)


if __name__ == "__main__":
    main()
