"""What a beam search has tried, as a part of its first choice."""

from jaxllm.serving.http.body.base import Answer


class BeamToken(Answer, kw_only=True):
    """A token with which a beam went on, or ended."""

    parent: int | None
    """The place in the list of the token before it; null after the prompt."""
    id: int
    token: str
    """Its text; bytes that are not a whole character are written as \\xNN."""
    bytes: list[int]
    """Its bytes: joined along a path they are the text in UTF-8."""
    logprob: float
    """Natural logarithm of its probability after the tokens before it."""
    total: float
    """The sum of log-probabilities up to it, by which beams are ranked."""
    finish_reason: str | None = None
    """Why a hypothesis ended with it: stop or length; null where the beam went on, or was given up."""
    score: float | None = None
    """Of such a hypothesis: the total divided by its number of tokens ** length_penalty."""
    choice: int | None = None
    """Which of the prompt's choices ends with it, from 0; null for a hypothesis that is not returned."""


class BeamTree(Answer, kw_only=True):
    """The tokens of all beams, step after step."""

    tokens: list[BeamToken]
    is_whole: bool
    """False: there were more tokens than are returned, and those of the last steps are left out."""
