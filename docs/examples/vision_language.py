"""Describes a drawing, with a model that sees: `python vision_language.py [MODEL]`."""

import sys

from PIL import Image, ImageDraw

from jaxllm import LLM, SamplingParams


def draw() -> Image.Image:
    """A red circle and a blue square."""
    picture = Image.new("RGB", (192, 192), "white")
    pen = ImageDraw.Draw(picture)
    pen.ellipse((20, 20, 76, 76), fill="red")
    pen.rectangle((116, 116, 172, 172), fill="blue")
    return picture


def main() -> None:
    model = sys.argv[1] if len(sys.argv) > 1 else "demo-vision"
    llm = LLM(model=model, limit_mm_per_prompt={"image": 1})
    params = SamplingParams(temperature=0, max_tokens=64)
    image = {"type": "image_pil", "image_pil": draw()}
    for question in ("What is in this picture?", "What color is the square?"):
        parts = [image, {"type": "text", "text": question}]
        (answer,) = llm.chat([{"role": "user", "content": parts}], params, use_tqdm=False)
        print(f"{question} {answer.outputs[0].text}")


if __name__ == "__main__":
    main()
