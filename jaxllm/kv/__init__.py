"""The KV cache as the host sees it: pages and shared prefixes."""
