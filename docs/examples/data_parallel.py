"""Runs two engines, each in its own process, and divides the prompts between them."""

from jaxllm import LLM, SamplingParams


def main() -> None:
    with LLM(model="demo", data_parallel_size=2, max_model_len=256) as llm:
        prompts = [f"Tell me about the number {number}." for number in range(8)]
        for output in llm.generate(prompts, SamplingParams(temperature=0, max_tokens=12)):
            print(output.request_id, output.outputs[0].text)


if __name__ == "__main__":
    main()
