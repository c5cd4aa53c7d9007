"""LoRA adapters of an engine: which are on the host, and which have a slot on the devices."""
