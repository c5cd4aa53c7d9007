"""Shows that a seed gives the same text, whatever runs alongside it."""

from jaxllm import LLM, SamplingParams

SEEDED = SamplingParams(temperature=1, seed=42, max_tokens=24)
OTHER = SamplingParams(temperature=1, max_tokens=24)


def main() -> None:
    llm = LLM(model="demo")
    (alone,) = llm.generate("Once upon a time", SEEDED, use_tqdm=False)
    prompts, params = ["Once upon a time", *["Mira is"] * 5], [SEEDED, *[OTHER] * 5]
    in_company = llm.generate(prompts, params, use_tqdm=False)[0]
    print("the same:", alone.outputs[0].text == in_company.outputs[0].text)


if __name__ == "__main__":
    main()
