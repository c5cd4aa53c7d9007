"""How pictures and questions stand in a prompt, and the tokens of the model that sees."""

from __future__ import annotations

from scripts.demo_model.chat import END, START
from scripts.demo_vision.questions import Question

FAKE, WHOLE, IMAGE = "<fake_token_around_image>", "<global-img>", "<image>"
TOKENS = (FAKE, WHOLE, IMAGE, "<end_of_utterance>")
"""Those that transformers' processor of Idefics 3 writes, after the demo model's."""

WORDS = (" circle", " square", " triangle", " cross", " purple", " top", " bottom", " left", " right")
"""Words that the demo model's tokenizer cuts in pieces: what a row of a picture says is then one token each."""

TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == 'image' %}
                {{- '<image>' }}
            {%- elif part.type == 'text' %}
                {{- part.text }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""


def texts(question: Question, rows: int) -> tuple[str, str]:
    """What comes before the answer, and the answer with its end; a later question, without rows, has no picture."""
    picture = f"{FAKE}{WHOLE}{IMAGE * rows}{FAKE}"
    user = f"{START}user\n{picture}" if rows else f"\n{START}user\n"
    return f"{user}{question.text}{END}\n{START}assistant\n", f"{question.answer}{END}"
