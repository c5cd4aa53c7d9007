"""The tree of a beam search in the format of the interface."""

from jaxllm.requests import outputs
from jaxllm.serving.openai.generation.logprobs import finite_number
from jaxllm.serving.openai.protocol.beam_tree import BeamToken, BeamTree
from jaxllm.serving.text.token_bytes import TokenBytes


def beam_tree(tree: outputs.BeamTree, token_bytes: TokenBytes) -> BeamTree:
    """What the engine has written down, with the text of each token."""
    columns = zip(tree.parents, tree.token_ids, tree.logprobs, tree.totals, strict=True)
    tokens = [
        BeamToken(
            parent=None if parent < 0 else parent,
            id=token_id,
            token=token_bytes.text(token_id)[0],
            bytes=list(token_bytes(token_id)),
            logprob=finite_number(logprob),
            total=finite_number(total),
        )
        for parent, token_id, logprob, total in columns
    ]
    for place, reason, score in tree.ends:
        tokens[place].finish_reason, tokens[place].score = reason, finite_number(score)
    for choice, place in enumerate(tree.best):
        if place >= 0:
            tokens[place].choice = choice
    return BeamTree(tokens=tokens, is_whole=tree.is_whole)
