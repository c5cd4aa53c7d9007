"""Uses of a model besides a generator: embedders, classifiers of texts and of tokens, reward models."""

from dataclasses import replace

from jaxllm.models.families.family import Family, HeadPlan

VECTOR_SIZES = ("colbert_dim", "dim", "embedding_dim", "projection_dim")
"""How configurations of ColBERT call the length of a token's vector."""


def token_classifier(family: Family, name: str = "classifier") -> Family:
    """The family with a head of one layer after each token, called `name` in checkpoints."""
    unused = tuple(f"{inner}." for inner in family.head_names.values() if inner != name)
    return replace(
        family,
        use="token_classify",
        head=HeadPlan(bias=True),
        head_names={"out": name},
        other_heads=(*family.other_heads, *unused),
    )


def reward_model(family: Family, *, labels: int, step_token_id: int | None = None) -> Family:
    """A decoder with a head of two layers after each token, as the reward models that were made of Qwen 2 have it."""
    return replace(
        family,
        use="token_classify",
        head=HeadPlan(dense=True, activation="relu", bias=True, labels=labels, step_token_id=step_token_id),
        head_names={"dense": "score.0", "out": "score.2"},
    )
