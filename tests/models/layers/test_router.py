"""The experts that tokens choose, and their weights, against transformers' routers."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import Glm4MoeConfig, GptOssConfig, MiniMaxM2Config, MixtralConfig, PhimoeConfig, Qwen2MoeConfig
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssTopKRouter
from transformers.models.minimax_m2.modeling_minimax_m2 import MiniMaxM2TopKRouter
from transformers.models.mixtral.modeling_mixtral import MixtralTopKRouter
from transformers.models.phimoe.modeling_phimoe import PhimoeTopKRouter
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeTopKRouter

from jaxllm.models.layers.router import choose
from jaxllm.models.mlp_plan import RouterPlan

HIDDEN, EXPERTS, TOKENS = 32, 12, 200
GROUPED = {"n_routed_experts": EXPERTS, "n_group": 4, "topk_group": 2, "norm_topk_prob": True}
ROUTERS: dict[str, tuple[Any, Any, int, RouterPlan]] = {
    "softmax": (
        Qwen2MoeTopKRouter,
        Qwen2MoeConfig(hidden_size=HIDDEN, num_experts=EXPERTS, num_experts_per_tok=5),
        5,
        RouterPlan(),
    ),
    "normalised": (
        MixtralTopKRouter,
        MixtralConfig(hidden_size=HIDDEN, num_local_experts=EXPERTS),
        2,
        RouterPlan(normalised=True),
    ),
    "chosen": (
        GptOssTopKRouter,
        GptOssConfig(hidden_size=HIDDEN, num_local_experts=EXPERTS, num_experts_per_tok=4),
        4,
        RouterPlan(kind="chosen_softmax", bias=True),
    ),
    "sigmoid": (
        MiniMaxM2TopKRouter,
        MiniMaxM2Config(hidden_size=HIDDEN, num_local_experts=EXPERTS, num_experts_per_tok=3),
        3,
        RouterPlan(kind="sigmoid", correction=True, normalised=True),
    ),
    "groups": (
        Glm4MoeTopkRouter,
        Glm4MoeConfig(hidden_size=HIDDEN, num_experts_per_tok=3, routed_scaling_factor=2.5, **GROUPED),
        3,
        RouterPlan(
            kind="sigmoid",
            correction=True,
            groups=4,
            top_groups=2,
            group_score="best_two",
            normalised=True,
            epsilon=1e-20,
            scale=2.5,
        ),
    ),
    "sparsemixer": (
        PhimoeTopKRouter,
        PhimoeConfig(hidden_size=HIDDEN, num_local_experts=EXPERTS, router_jitter_noise=0.1),
        2,
        RouterPlan(kind="sparsemixer", jitter=0.1),
    ),
}


@pytest.mark.parametrize("name", ROUTERS)
def test_the_choice_is_that_of_transformers(name: str) -> None:
    make, config, count, plan = ROUTERS[name]
    torch.manual_seed(0)
    router = make(config).eval()
    for parameter in router.parameters():
        torch.nn.init.normal_(parameter)
    x, correction = torch.randn(TOKENS, HIDDEN), torch.randn(EXPERTS) * 0.3
    inputs = (x, correction) if name == "sigmoid" else (x,)
    if name == "groups":
        router.e_score_correction_bias.copy_(correction)
    with torch.no_grad():
        logits, weights, experts = router(*inputs)
    added = jnp.asarray(correction.numpy()) if plan.correction else None
    found, shares = map(np.asarray, choose(jnp.asarray(logits.numpy()), plan, count, added))
    # In any order: the sum over experts has none.
    ours, theirs = np.argsort(found, axis=1), np.argsort(experts.numpy(), axis=1)
    np.testing.assert_array_equal(np.take_along_axis(found, ours, 1), np.take_along_axis(experts.numpy(), theirs, 1))
    wanted = np.take_along_axis(weights.numpy(), theirs, 1)
    np.testing.assert_allclose(np.take_along_axis(shares, ours, 1), wanted, atol=1e-6)


def test_of_equal_experts_the_first_are_chosen() -> None:
    experts, weights = choose(jnp.zeros((1, 6)), RouterPlan(normalised=True), 2)
    np.testing.assert_array_equal(experts, [[0, 1]])
    np.testing.assert_array_equal(weights, [[0.5, 0.5]])


def test_groups_by_their_best_expert() -> None:
    plan = RouterPlan(kind="sigmoid", groups=3, top_groups=1)
    experts, _ = choose(jnp.array([[1.0, 1.0, 2.0, -9.0, 0.0, 1.0]]), plan, 2)
    np.testing.assert_array_equal(experts, [[2, 3]])
