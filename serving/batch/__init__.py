"""`jaxllm run-batch`: files of requests in OpenAI's batch format, answered as a server would."""
