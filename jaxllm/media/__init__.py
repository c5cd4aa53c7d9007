"""Images of requests on the devices: which are there, and where."""
