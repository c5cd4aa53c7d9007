"""Asks several questions about one long text, which is computed only once."""

from jaxllm import LLM, SamplingParams

PREFIX = "Mira is a red fox who lives in the wood behind the mill. Every morning she runs to the river. " * 8
QUESTIONS = ["Once upon a time", "What is 2 + 3?", "Tell me a story about the river."]


def main() -> None:
    llm = LLM(model="demo", enable_prefix_caching=True)
    params = SamplingParams(temperature=0, max_tokens=16)
    prompts = [PREFIX + question for question in QUESTIONS]
    llm.generate(prompts[0], params, use_tqdm=False)  # leaves the pages of the prefix in the cache
    for output in llm.generate(prompts, params, use_tqdm=False):
        print(f"{output.num_cached_tokens} of {len(output.prompt_token_ids)} tokens were cached")
    print("forgotten:", llm.reset_prefix_cache())


if __name__ == "__main__":
    main()
