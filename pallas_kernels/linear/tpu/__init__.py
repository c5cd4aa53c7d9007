"""Products with quantised matrices on TPUs: a Pallas kernel that widens them in vector memory."""
