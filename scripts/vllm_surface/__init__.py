"""What of vLLM's surface jaxllm has: `python -m scripts.vllm_surface FOLDER`, where FOLDER is a source distribution."""
