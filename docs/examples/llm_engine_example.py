"""Drives the engine by hand: adds a request before each step, and prints finished requests.

Accepts every engine flag: `python llm_engine_example.py --model demo --max-num-seqs 8`.
"""

from jaxllm import EngineArgs, LLMEngine, SamplingParams
from jaxllm.utils.argparse_utils import FlexibleArgumentParser

REQUESTS = [
    ("Once upon a time", SamplingParams(temperature=0, logprobs=1, prompt_logprobs=1)),
    ("Mira is", SamplingParams(temperature=0.8, top_k=5, presence_penalty=0.2)),
    ("The red fox", SamplingParams(n=2, temperature=0.8, top_p=0.95, frequency_penalty=0.1)),
]


def main() -> None:
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser(description="An engine, driven by hand."))
    engine = LLMEngine.from_engine_args(EngineArgs.from_cli_args(parser.parse_args()))
    waiting = list(enumerate(REQUESTS))
    while waiting or engine.has_unfinished_requests():
        if waiting:
            number, (prompt, params) = waiting.pop(0)
            engine.add_request(str(number), prompt, params)
        for output in engine.step():
            if output.finished:
                print(output.request_id, [each.text for each in output.outputs])


if __name__ == "__main__":
    main()
