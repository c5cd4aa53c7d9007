"""Products with quantized matrices on TPUs: a Pallas kernel that widens them in vector memory."""
