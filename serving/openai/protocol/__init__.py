"""Bodies of requests and responses, field by field; every field has a description, which the OpenAPI document shows."""
