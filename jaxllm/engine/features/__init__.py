"""Features of a step beyond sampling one token after another: grammars, beams, log-probabilities."""
