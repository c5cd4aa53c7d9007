"""Constrains answers to a schema, a choice of words or a regular expression, with OpenAI's client."""

import json
import os

from openai import OpenAI

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def main() -> None:
    client = OpenAI(
        api_key=os.environ.get("OPENAI_API_KEY", "EMPTY"),
        base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1"),
    )
    asked = {
        "model": client.models.list().data[0].id,
        "messages": [{"role": "user", "content": "Describe Mira."}],
        "max_tokens": 64,
        "temperature": 0,
    }
    form = {"type": "json_schema", "json_schema": {"name": "fox", "schema": SCHEMA, "strict": True}}
    answer = client.chat.completions.create(**asked, response_format=form)
    print("schema:", json.loads(answer.choices[0].message.content))
    for form in ({"choice": ["fox", "owl"]}, {"regex": "[a-z]{3,8}"}):
        answer = client.chat.completions.create(**asked, extra_body={"structured_outputs": form})
        print(form, "->", answer.choices[0].message.content)


if __name__ == "__main__":
    main()
