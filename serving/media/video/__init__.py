"""Videos of requests: which frames of a file, and what the model sees of them."""
