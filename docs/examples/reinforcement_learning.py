"""A reinforcement learning loop: the engine generates, a trainer changes the weights, and both share the devices.

The trainer is as small as possible: it tries a random change to the output layer, and keeps it if the score improves.
Run it with `python docs/examples/reinforcement_learning.py`.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
from safetensors.flax import load_file

from jaxllm import LLM, SamplingParams

PROMPTS = ["Once upon a time", "One day, a cat"]
NAME = "model.embed_tokens.weight"  # its name in the checkpoint; the output layer of `demo` is the same matrix


def reward(text: str) -> float:
    """Rewards short words."""
    words = text.split() or ["a" * 20]
    return -sum(map(len, words)) / len(words)


def score(llm: LLM) -> float:
    """The mean reward of the current policy's answers."""
    outputs = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)
    return sum(reward(output.outputs[0].text) for output in outputs) / len(outputs)


def main(steps: int = 3) -> list[float]:
    """The score of the best policy after each step."""
    llm = LLM("demo", enable_sleep_mode=True, max_model_len=128, max_num_seqs=4, show_progress=False)
    params = load_file(Path(llm.llm_engine.engine.info.model_folder) / "model.safetensors")
    best, scores = score(llm), []
    for step in range(steps):
        # The devices are the trainer's now: weights and KV cache are gone.
        llm.sleep(level=2)
        noise = jax.random.normal(jax.random.key(step), params[NAME].shape, jnp.float32)
        tried = params | {NAME: (params[NAME].astype(jnp.float32) + 0.02 * noise).astype(params[NAME].dtype)}
        # New weights first, while the trainer still needs room; the KV cache when it has finished.
        llm.wake_up(tags=["weights"])
        llm.update_weights(tried)
        llm.wake_up(tags=["kv_cache"])
        found = score(llm)
        if found > best:
            best, params = found, tried
        else:
            # Only changed tensors are sent.
            llm.update_weights({NAME: params[NAME]})
        scores.append(best)
        print(f"step {step}: tried {found:.3f}, best {best:.3f}")
    llm.close()
    return scores


if __name__ == "__main__":
    main()
