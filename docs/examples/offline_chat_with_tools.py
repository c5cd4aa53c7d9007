"""Describes a function to the model, and runs what it calls.

The demo model never learnt to call functions, so the form of the call is required of it: a model that did needs no
`structured_outputs`.
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
