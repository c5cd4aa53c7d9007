"""Where the rows of images are in the positions by which a model rotates (M-RoPE, arXiv 2409.12191).

Text counts on by one. All rows of an image have its beginning as their time, and their place in its grid as height and
width. What follows an image counts on from its longer side.
"""

import numpy as np
import numpy.typing as npt

from jaxllm.requests.media import MediaItem, PromptMedia

Int32Array = npt.NDArray[np.int32]


def grid_offsets(media: PromptMedia, merge: int) -> tuple[Int32Array, int]:
    """Positions of a prompt less places, int32 [3, media.end], and what that is for all tokens after the last image.

    A row is a square of `merge` patches each way. The rows of an image stand next to each other.
    """
    offsets = np.zeros((3, media.end), np.int32)
    shift = begin = row = 0
    for item in media.items:
        first, end = int(media.places[row]), int(media.places[row]) + item.num_rows
        height, width = grid_of(item, merge)
        offsets[:, begin:first] = shift
        place = np.arange(item.num_rows, dtype=np.int32)
        offsets[0, first:end] = shift - place
        offsets[1, first:end] = shift - place + place // width
        offsets[2, first:end] = shift - place + place % width
        shift += max(height, width) - item.num_rows
        begin, row = end, row + item.num_rows
    return offsets, shift


def grid_of(item: MediaItem, merge: int) -> tuple[int, int]:
    """Rows of an image each way, of one that is a single crop."""
    (crop,) = item.crops
    return crop.height // merge, crop.width // merge


def are_together(media: PromptMedia) -> bool:
    """Whether the rows of each image stand next to each other."""
    row = 0
    for item in media.items:
        own = media.places[row : row + item.num_rows]
        if len(own) and int(own[-1] - own[0]) != item.num_rows - 1:
            return False
        row += item.num_rows
    return True
