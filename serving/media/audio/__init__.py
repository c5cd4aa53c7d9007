"""Sound of requests: decoded, resampled, made into features and cut into windows."""
