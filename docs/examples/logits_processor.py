"""Changes scores before tokens are chosen: with a class on NumPy arrays, and with a compiled one."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm import LLM, SamplingParams
from jaxllm.v1.sample.logits_processor import AdapterLogitsProcessor, JaxLogitsProcessor, RequestLogitsProcessor


class NoRepeats(AdapterLogitsProcessor):
    """Allows no token twice, for requests with `unique`. It runs on the host, once per request."""

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor | None:
        """The function for one request."""
        if not (params.extra_args or {}).get("unique"):
            return None

        def forbid(output_ids: list[int], logits: np.ndarray) -> np.ndarray:
            logits[output_ids] = -np.inf
            return logits

        return forbid


class Until(JaxLogitsProcessor):
    """Allows only the first `vocabulary` tokens, for requests that set it. It is compiled when the engine starts."""

    dtype = "int32"

    def parameters(self, params: SamplingParams) -> int | None:
        """The number that a request sets, if any."""
        return (params.extra_args or {}).get("vocabulary")

    def apply(self, logits: jax.Array, parameters: jax.Array) -> jax.Array:
        """The new logits, from logits [B, V] and a number for each of the B requests."""
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
