"""How many images and videos a request may have."""

from collections.abc import Mapping, Sequence

from jaxllm.errors import RequestError
from jaxllm.requests.media import FIELD
from jaxllm.serving.options.media import MediaOptions
from jaxllm.serving.text.messages import IMAGE, VIDEO


def most_of(options: MediaOptions) -> dict[str, int]:
    """The most of each medium in a request."""
    return {IMAGE: options.max_images_per_prompt, VIDEO: options.max_videos_per_prompt}


def check_count(media: Sequence[str], most: Mapping[str, int], where: Sequence[str] | None = None) -> None:
    """Raise `RequestError` for more of a medium than there may be, at the place of the first that is too many."""
    for medium, allowed in most.items():
        places = [place for place, each in enumerate(media) if each == medium]
        if len(places) > allowed:
            option = f"at most {allowed} (max_{medium}s_per_prompt)"
            if where is None:
                raise RequestError(f"{len(places)} {medium}s: a prompt may have {option}", FIELD)
            raise RequestError(f"{len(places)} {medium}s: a request may have {option}", where[places[allowed]])
