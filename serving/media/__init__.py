"""Images of requests on the host: fetched, decoded, and turned into the bytes that a vision tower sees."""
