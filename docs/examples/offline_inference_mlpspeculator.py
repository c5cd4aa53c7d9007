"""Generates with an MLP speculator and without, and shows how long each takes and how many guesses were right.

Takes a model and its speculator, by default Llama-3.1-8B-Instruct and the one that IBM has trained for it.
"""

import sys
import time

from jaxllm import LLM, SamplingParams

MODEL, SPECULATOR = "meta-llama/Llama-3.1-8B-Instruct", "ibm-ai-platform/llama3-8b-accelerator"
PROMPTS = ["Hello, my name is", "The capital of France is", "The future of AI is"]


def texts_of(llm: LLM, title: str) -> list[str]:
    params = SamplingParams(temperature=0, max_tokens=48)
    llm.generate(PROMPTS, params)
    begin = time.perf_counter()
    answers = [answer.outputs[0] for answer in llm.generate(PROMPTS, params)]
    seconds = time.perf_counter() - begin
    print(f"{title}: {sum(len(answer.token_ids) for answer in answers) / seconds:.0f} tokens per second")
    for answer in answers:
        if answer.spec_decode_metrics is not None:
            print(answer.spec_decode_metrics)
    return [answer.text for answer in answers]


def main() -> None:
    model, speculator = sys.argv[1:] or (MODEL, SPECULATOR)
    plain = texts_of(LLM(model), "without guesses")
    llm = LLM(model, speculative_config={"model": speculator}, per_request_spec_decode_metrics="summary")
    print("the same:", texts_of(llm, "with guesses") == plain)


if __name__ == "__main__":
    main()
