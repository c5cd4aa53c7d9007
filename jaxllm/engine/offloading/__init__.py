"""The host tier of an engine: moves pages between the devices and `jaxllm.kv.tiers`."""
