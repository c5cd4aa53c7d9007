"""Describes a function to the model, and runs the calls that it makes.

The demo model knows few functions, so `structured_outputs` enforces the form of the call. A model trained to call
functions does not need it.
"""

import json

from jaxllm import LLM, SamplingParams, StructuredOutputsParams

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"type": "integer", "maximum": 99}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}


def main() -> None:
    llm = LLM(model="demo")
    form = StructuredOutputsParams(json=TOOL["function"]["parameters"], disable_any_whitespace=True)
    params = SamplingParams(temperature=0, max_tokens=64, structured_outputs=form)
    talk = [{"role": "user", "content": "What is 17 plus 25?"}]
    (output,) = llm.chat(talk, params, tools=[TOOL], use_tqdm=False)
    arguments = json.loads(output.outputs[0].text)
    print(f"add({arguments}) = {arguments['a'] + arguments['b']}")


if __name__ == "__main__":
    main()
