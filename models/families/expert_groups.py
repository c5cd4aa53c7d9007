"""Groups of experts; only the best groups are looked at."""

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.mlp_plan import RouterPlan


def sigmoid_router(file: ConfigFile, *, groups: int | None = 1, scale: float = 1.0) -> RouterPlan:
    """DeepSeek V3's router, which others have too. `groups` and `scale` are defaults; None: they must be in `file`."""
    return RouterPlan(
        kind="sigmoid",
        correction=True,
        groups=file.integer("n_group", groups),
        top_groups=file.integer("topk_group", groups),
        group_score="best_two",
        normalised=file.boolean("norm_topk_prob", True),
        epsilon=1e-20,
        scale=file.number("routed_scaling_factor", scale),
    )


def check_expert_groups(file: ConfigFile, router: RouterPlan, count: int) -> None:
    """Raise `ModelError` unless `count` experts are in even groups, and the chosen groups have enough experts."""
    least = 2 if router.group_score == "best_two" and router.groups > 1 else 1
    if count % router.groups or count // router.groups < least:
        raise file.wrong("n_group", f"a divisor of 'n_routed_experts' = {count}, with {least} or more in a group")
    enough = router.top_groups * (count // router.groups) >= file.integer("num_experts_per_tok")
    if router.groups > 1 and not (router.top_groups <= router.groups and enough):
        raise file.wrong(
            "topk_group",
            "at most 'n_group', and enough groups for 'num_experts_per_tok' experts "
            f"where 'n_routed_experts' is {count}",
        )
