"""Writes a trace of some steps, for xprof or TensorBoard."""

import tempfile

from jaxllm import LLM, SamplingParams


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        llm = LLM(model="demo", profiler_dir=folder)
        llm.start_profile()
        llm.generate("Once upon a time", SamplingParams(max_tokens=4), use_tqdm=False)
        print("trace in", llm.stop_profile())


if __name__ == "__main__":
    main()
