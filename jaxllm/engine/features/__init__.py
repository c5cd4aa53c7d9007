"""What some requests need of a step beyond one sampled token after another: grammars, beams, log-probabilities."""
