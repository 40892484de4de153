"""Evaluation: perplexity at fixed depths, all from one unroll."""

from scse.evaluation.perplexity import DepthResult, perplexity_over_depths

__all__ = ["DepthResult", "perplexity_over_depths"]
