"""Where the rows of images are in the positions by which a model rotates (M-RoPE, arXiv 2409.12191).

Text counts on by one. All rows of an image have its beginning as their time, and their place in its grid as height and
width. Those of a video have a time for each of its crops. What follows counts on from the largest of these, as the
models were trained; transformers 5 counts on from the longer side, also where a video's times go further.
"""

import numpy as np
import numpy.typing as npt

from jaxllm.requests.media import MediaItem, PromptMedia

Int32Array = npt.NDArray[np.int32]


def grid_offsets(media: PromptMedia, merge: int) -> tuple[Int32Array, int]:
    """Positions of a prompt less places, int32 [3, media.end], and what that is for all tokens after the last image.

    A row is a square of `merge` patches each way. The rows of an image or video stand next to each other.
    """
    offsets = np.zeros((3, media.end), np.int32)
    shift = begin = row = 0
    for item in media.items:
        first, end = int(media.places[row]), int(media.places[row]) + item.num_rows
        height, width = grid_of(item, merge)
        offsets[:, begin:first] = shift
        place = np.arange(item.num_rows, dtype=np.int32)
        inside, times = place % (height * width), np.array(item.times or (0,), np.int32)
        offsets[0, first:end] = shift - place + times[place // (height * width)]
        offsets[1, first:end] = shift - place + inside // width
        offsets[2, first:end] = shift - place + inside % width
        shift += max(height, width, int(times[-1]) + 1) - item.num_rows
        begin, row = end, row + item.num_rows
    return offsets, shift


def grid_of(item: MediaItem, merge: int) -> tuple[int, int]:
    """Rows each way of an image that is a single crop, or of a video's crops."""
    crop = item.crops[0]
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
