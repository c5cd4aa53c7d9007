"""Embeds texts and compares them. A model made for embeddings does not need `runner`."""

from jaxllm import LLM
from jaxllm.utils.print_utils import print_embeddings

TEXTS = ["The red fox runs.", "A fox is running.", "2 + 3 = 5"]


def main() -> None:
    llm = LLM(model="demo", runner="pooling")
    for text, output in zip(TEXTS, llm.embed(TEXTS), strict=True):
        print(repr(text))
        print_embeddings(output.outputs.embedding)
    for output in llm.score(TEXTS[0], TEXTS[1:]):
        print("cosine:", round(output.outputs.score, 3))


if __name__ == "__main__":
    main()
