"""Finds the most likely continuations with beam search."""

from jaxllm import LLM, BeamSearchParams


def main() -> None:
    llm = LLM(model="demo")
    (found,) = llm.beam_search("Once upon a time", BeamSearchParams(beam_width=3, max_tokens=12))
    for sequence in found.sequences:
        print(round(sequence.score, 3), repr(sequence.text))


if __name__ == "__main__":
    main()
