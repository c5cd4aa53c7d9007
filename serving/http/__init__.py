"""HTTP below the routes: connections, their limits and timeouts, and what is written to them."""
