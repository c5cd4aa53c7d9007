"""Guesses tokens that repeat the prompt, and shows how many of the guesses were right."""

from jaxllm import LLM, SamplingParams
from jaxllm.v1.metrics.reader import Counter, Vector

TEXT = "The red fox ran to the river. The red fox drank from the river. The red fox"


def main() -> None:
    params = SamplingParams(temperature=0, max_tokens=48)
    plain = LLM(model="demo").generate(TEXT, params)[0].outputs[0].text
    config = {"method": "ngram", "num_speculative_tokens": 5}
    llm = LLM(model="demo", speculative_config=config, disable_log_stats=False)
    text = llm.generate(TEXT, params)[0].outputs[0].text
    print(text)
    print("the same without guesses:", text == plain)
    for metric in llm.get_metrics():
        if "spec_decode" in metric.name:
            if isinstance(metric, Counter):
                print(f"{metric.name}: {metric.value}")
            elif isinstance(metric, Vector):
                print(f"{metric.name}: {metric.values}")


if __name__ == "__main__":
    main()
