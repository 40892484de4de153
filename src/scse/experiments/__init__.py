"""Records of evaluations, and what can be said from them over seeds."""
