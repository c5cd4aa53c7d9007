"""LoRA adapters on the host: reading them in the formats of the tools that people train with, as a model's parameters
lie. Nothing here knows of requests or slots.
"""
