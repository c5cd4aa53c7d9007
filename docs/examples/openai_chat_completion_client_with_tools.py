"""Has the model call a function, with OpenAI's client. The demo model knows few functions, so a call is required."""

import json
import os

from openai import OpenAI

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
    client = OpenAI(
        api_key=os.environ.get("OPENAI_API_KEY", "EMPTY"),
        base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1"),
    )
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": "What is 17 plus 25?"}],
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "add"}},
        max_tokens=64,
        temperature=0,
    )
    (call,) = answer.choices[0].message.tool_calls
    print(call.function.name, json.loads(call.function.arguments))


if __name__ == "__main__":
    main()
