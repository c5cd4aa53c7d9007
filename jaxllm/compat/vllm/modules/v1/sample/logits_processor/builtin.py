"""Helpers for them."""

from jaxllm.processors.interface import process_dict_updates

__all__ = ["process_dict_updates"]
