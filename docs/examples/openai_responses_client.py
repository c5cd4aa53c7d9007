"""Uses OpenAI's Responses API, and continues an earlier response."""

import os

from openai import OpenAI


def main() -> None:
    client = OpenAI(
        api_key=os.environ.get("OPENAI_API_KEY", "EMPTY"),
        base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1"),
    )
    model = client.models.list().data[0].id
    first = client.responses.create(model=model, input="What is 17 plus 25?", max_output_tokens=32, temperature=0)
    print(first.output_text)
    then = client.responses.create(
        model=model, input="And plus 3?", previous_response_id=first.id, max_output_tokens=32, temperature=0
    )
    print(then.output_text)


if __name__ == "__main__":
    main()
