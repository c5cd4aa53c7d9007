"""Sends a picture, or a sound, to a server whose model takes it: `... --chat-type audio` for the sound."""

import argparse
import base64
import io
import math
import os
import struct
import wave

from openai import OpenAI
from PIL import Image


def picture() -> str:
    """A blue square, as a URL that has the file itself."""
    file = io.BytesIO()
    Image.new("RGB", (96, 96), "blue").save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def sound() -> str:
    """A second of a tone, as a WAV file in base64."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(16_000)
        samples = [round(8_000 * math.sin(2 * math.pi * 440 * place / 16_000)) for place in range(16_000)]
        writer.writeframes(struct.pack(f"<{len(samples)}h", *samples))
    return base64.b64encode(file.getvalue()).decode()


PARTS = {
    "single-image": lambda: {"type": "image_url", "image_url": {"url": picture()}},
    "audio": lambda: {"type": "input_audio", "input_audio": {"data": sound(), "format": "wav"}},
}
QUESTIONS = {"single-image": "What is in this picture?", "audio": "What do you hear?"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chat-type", "-c", choices=PARTS, default="single-image")
    kind = parser.parse_args().chat_type
    with OpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:8000/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    ) as client:
        model = client.models.list().data[0].id
        parts = [PARTS[kind](), {"type": "text", "text": QUESTIONS[kind]}]
        stream = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": parts}], max_tokens=64, temperature=0, stream=True
        )
        print("answer:", end=" ")
        for chunk in stream:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
        print()


if __name__ == "__main__":
    main()
