"""Where vLLM has its second engine. There is one here."""
