"""Answers one conversation, then several at once."""

from jaxllm import LLM, SamplingParams

TALK = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is 17 plus 25?"},
]


def main() -> None:
    llm = LLM(model="demo")
    params = SamplingParams(temperature=0, max_tokens=32)
    (answer,) = llm.chat(TALK, params, use_tqdm=False)
    print("one:", answer.outputs[0].text)
    for answer in llm.chat([TALK] * 3, params):
        print("of several:", answer.outputs[0].text)


if __name__ == "__main__":
    main()
