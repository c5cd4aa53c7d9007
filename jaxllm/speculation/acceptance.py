"""Which drafts of a step are accepted.

The token at a place of an output is a function of the logits there, the request's parameters and the number of the
place. So a step samples at every draft as if those before it were right, and a draft is accepted while it is the token
that was sampled before it: the output is the one that there would be without drafts.
"""

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]


def accept_drafts(sampled: Int32Array, num_drafts: Int32Array, draft_ids: Int32Array) -> tuple[Int32Array, Int32Array]:
    """The tokens of a step that are part of the outputs.

    `num_drafts` int32 [n] are the drafts of each row, `draft_ids` int32 [sum of them]; `sampled` has a token for each
    row and, after it, one for each of its drafts. Returns the tokens that count, row after row, and how many of them
    each row has, int32 [n]: one more than the drafts that were accepted.
    """
    ends = np.cumsum(1 + num_drafts, dtype=np.int32)
    firsts = ends - (1 + num_drafts)
    counts = np.ones_like(num_drafts)
    draft_firsts = np.cumsum(num_drafts) - num_drafts
    going_on = np.flatnonzero(num_drafts)
    for place in range(int(num_drafts.max(initial=0))):
        going_on = going_on[num_drafts[going_on] > place]
        going_on = going_on[sampled[firsts[going_on] + place] == draft_ids[draft_firsts[going_on] + place]]
        counts[going_on] += 1
    offsets = np.arange(counts.sum(), dtype=np.int32) - np.repeat(np.cumsum(counts, dtype=np.int32) - counts, counts)
    return sampled[np.repeat(firsts, counts) + offsets], counts
