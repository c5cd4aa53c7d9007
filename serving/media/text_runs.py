"""What stands for an image in a prompt, as texts that are repeated."""

from dataclasses import dataclass

from jaxllm.serving.media.arranged_rows import ArrangedRows


@dataclass(frozen=True)
class TextRun:
    """A text, so many times."""

    text: str
    count: int = 1
    is_feature: bool = False
    """Whether each is a token that gets a row of the tower's output, in order, or as `arranged`."""
    arranged: ArrangedRows | None = None


def text_of(runs: tuple[TextRun, ...]) -> str:
    """The runs as one text."""
    return "".join(run.text * run.count for run in runs)


def features_of(runs: tuple[TextRun, ...]) -> int:
    """Rows of the tower's output that the runs need."""
    return sum(run.count for run in runs if run.is_feature)


def arrangement_of(runs: tuple[TextRun, ...]) -> ArrangedRows | None:
    """Which rows of the tower's output the runs have, if not each once, in order. One run has all of these."""
    return next((run.arranged for run in runs if run.arranged is not None), None)
