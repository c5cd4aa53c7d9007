"""Constrains the output to a choice of words, a regular expression, a schema, or a grammar."""

from jaxllm import LLM, SamplingParams
from jaxllm.sampling_params import StructuredOutputsParams

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMS = {
    "choice": StructuredOutputsParams(choice=["fox", "owl"]),
    "regex": StructuredOutputsParams(regex=r"[0-9]{1,3} \+ [0-9]{1,3}"),
    "json": StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True),
    "grammar": StructuredOutputsParams(grammar='root ::= "SELECT " column " FROM foxes"\ncolumn ::= "name" | "age"'),
}


def main() -> None:
    llm = LLM(model="demo")
    params = [SamplingParams(temperature=0, max_tokens=64, structured_outputs=form) for form in FORMS.values()]
    outputs = llm.generate(["Mira is"] * len(FORMS), params, use_tqdm=False)
    for name, output in zip(FORMS, outputs, strict=True):
        print(f"{name}: {output.outputs[0].text}")


if __name__ == "__main__":
    main()
