"""Both ends of the wire between a client and the process that owns the devices."""
