"""Writes down a sound file, whole and as a stream: `python openai_transcription_client.py spoken_numbers.ogg`.

It needs a server with Whisper: `jaxllm serve demo-sound`, or `jaxllm serve openai/whisper-large-v3-turbo`.
"""

import os
import sys
from pathlib import Path

from openai import OpenAI


def main() -> None:
    path = Path(sys.argv[1])
    with OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    ) as client:
        model = client.models.list().data[0].id
        with path.open("rb") as file:
            whole = client.audio.transcriptions.create(
                model=model,
                file=file,
                language="en",
                response_format="verbose_json",
                timestamp_granularities=["segment"],
            )
        for segment in whole.segments or ():
            print(f"{segment.start:7.2f} s to {segment.end:7.2f} s:{segment.text}")
        with path.open("rb") as file:
            stream = client.audio.transcriptions.create(model=model, file=file, language="en", stream=True)
            print("streamed:", end=" ")
            for event in stream:
                if event.type == "transcript.text.delta":
                    print(event.delta, end="", flush=True)
        print()


if __name__ == "__main__":
    main()
