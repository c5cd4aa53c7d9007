"""Bodies of requests: decoding, bounds, and fields that are not served."""
