"""The paged KV cache as the host sees it: which page belongs to whom. Page contents live on the device."""
