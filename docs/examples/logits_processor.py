"""Python that changes scores before tokens are chosen: one class on NumPy arrays, one that is compiled."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm import LLM, SamplingParams
from jaxllm.v1.sample.logits_processor import AdapterLogitsProcessor, JaxLogitsProcessor, RequestLogitsProcessor


class NoRepeats(AdapterLogitsProcessor):
    """No token twice, for requests with `unique`. It runs on the host, for each of them."""

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """The function of a request."""
        if not (params.extra_args or {}).get("unique"):
            return None

        def forbid(output_ids: list[int], logits: np.ndarray) -> np.ndarray:
            logits[output_ids] = -np.inf
            return logits

        return forbid


class Until(JaxLogitsProcessor):
    """Only the first `vocabulary` tokens, for requests that say so. It is compiled when the engine starts."""

    dtype = "int32"

    def parameters(self, params: SamplingParams) -> int | None:
        """What a request says."""
        return (params.extra_args or {}).get("vocabulary")

    def apply(self, logits: jax.Array, parameters: jax.Array) -> jax.Array:
        """Logits [B, V], and for each of B requests its number."""
        tokens = jnp.arange(logits.shape[1], dtype=jnp.int32)
        return jnp.where(tokens < parameters[:, None], logits, -jnp.inf)


def main() -> None:
    llm = LLM("demo", logits_processors=[NoRepeats, Until])
    prompt = "Once upon a time, there was a"
    for name, extra_args in [("without", None), ("with it", {"unique": True}), ("short tokens", {"vocabulary": 1000})]:
        params = SamplingParams(temperature=0, max_tokens=24, extra_args=extra_args)
        print(f"{name}: {llm.generate(prompt, params)[0].outputs[0].text!r}")


if __name__ == "__main__":
    main()
