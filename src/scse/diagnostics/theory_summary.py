"""The counterfactual theory of some inputs as rows, means and a sentence."""

from __future__ import annotations

from typing import Any

from scse.diagnostics.theory import InputTheory, verdict


def input_row(number: int, x: InputTheory) -> dict[str, Any]:
    """One input as numbers; `bound` is None where q ≥ 1 and the contraction corollary says nothing."""
    gap = x.loss_gap
    return {
        "input": number,
        "response": x.response,
        "theorem_residual": x.theorem_residual,
        "lemma_residual": x.lemma_residual,
        "order": x.order,
        "vector_residual": x.vector_residual,
        "q": x.contraction.q,
        "B": x.contraction.B,
        "bound": x.contraction.bound,
        "beta": x.beta,
        "coherence": x.coherence,
        "loss": gap.ordinary,
        "loss_without": gap.subtracted,
        "gap": gap.gap,
        "gap_residual": gap.residual,
        "slope": gap.slope,
        "verdict": x.verdict,
    }


def per_step(found: list[InputTheory], first: int) -> list[dict[str, float]]:
    """Means over the inputs for each step whose forcing was taken away."""
    columns = {
        name: sum(getattr(x, name) for x in found) / len(found) for name in ("forcing", "arriving", "along", "loss")
    }
    return [
        {"step": first + k, **{name: float(values[k]) for name, values in columns.items()}}
        for k in range(len(found[0].forcing))
    ]


def summary(found: list[InputTheory]) -> dict[str, float]:
    """Means over the inputs; residuals and q are the largest."""
    rows = [input_row(number, x) for number, x in enumerate(found)]
    worst = ("theorem_residual", "lemma_residual", "vector_residual", "gap_residual", "order", "q", "B")
    mean = ("response", "beta", "coherence", "loss", "loss_without", "gap", "slope")
    numbers = {name: float(max(row[name] for row in rows)) for name in worst}
    numbers |= {name: float(sum(row[name] for row in rows) / len(rows)) for name in mean}
    return numbers | {
        kind: float(sum(x.verdict == kind for x in found)) for kind in ("harmful", "neutral", "beneficial")
    }


def average_verdict(found: list[InputTheory]) -> str:
    """One sentence: the sign of the mean loss gap, and how many inputs agree."""
    gap = sum(x.loss_gap.gap for x in found) / len(found)
    counts = ", ".join(
        f"{sum(x.verdict == kind for x in found)} {kind}" for kind in ("harmful", "neutral", "beneficial")
    )
    return f"{verdict(gap)} on average: the forcing changes the loss by {gap:+.4g} nats per token ({counts})"
