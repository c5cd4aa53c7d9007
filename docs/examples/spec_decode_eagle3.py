"""Lets the head that ships with jaxllm guess for the model that ships, and shows how many guesses were right."""

from jaxllm import LLM, SamplingParams

CHATS = [[{"role": "user", "content": text}] for text in ("Tell me a story.", "Count from 1 to 20.")]


def main() -> None:
    params = SamplingParams(temperature=0, max_tokens=200)
    plain = [answer.outputs[0].text for answer in LLM(model="demo").chat(CHATS, params)]
    config = {"method": "eagle3", "model": "demo-eagle3", "num_speculative_tokens": 4}
    llm = LLM(model="demo", speculative_config=config, per_request_spec_decode_metrics="summary")
    outputs = [answer.outputs[0] for answer in llm.chat(CHATS, params)]
    print(outputs[0].text)
    print("the same without guesses:", [output.text for output in outputs] == plain)
    for output in outputs:
        print(output.spec_decode_metrics)


if __name__ == "__main__":
    main()
