"""Experiments by name, from the modules of the papers."""

from __future__ import annotations

from collections.abc import Callable

from experiments.experiment import Experiment
from experiments.papers import dungler_sanyal, nguyen_ene_nguyen, topics, wang_anandkumar, wang_xu
from experiments.results import ExperimentError

__all__ = ["EXPERIMENTS", "find_experiment"]

EXPERIMENTS: dict[str, Callable[[bool], Experiment]] = {
    "adadpo-fig1": dungler_sanyal.adadpo_fig1,
    "adadpo-fig2": dungler_sanyal.adadpo_fig2,
    "adadpo-fig3": dungler_sanyal.adadpo_fig3,
    "kdppca-fig1": dungler_sanyal.kdppca_fig1,
    "kdppca-fig2": dungler_sanyal.kdppca_fig2,
    "kdppca-fig3": dungler_sanyal.kdppca_fig3,
    "kdppca-fig4": dungler_sanyal.kdppca_fig4,
    "adaptive-power-coherence": nguyen_ene_nguyen.power_coherence,
    "adaptive-power-n": nguyen_ene_nguyen.power_n,
    "adaptive-power-epsilon": nguyen_ene_nguyen.power_epsilon,
    "ldp-fig1": wang_xu.ldp_fig1,
    "ldp-fig2": wang_xu.ldp_fig2,
    "ldp-fig3": wang_xu.ldp_fig3,
    "ldp-fig4": wang_xu.ldp_fig4,
    "ldp-table1": wang_xu.ldp_table1,
    "ldp-table2": wang_xu.ldp_table2,
    "tensor-fig1": wang_anandkumar.tensor_fig1,
    "tensor-scaling": wang_anandkumar.tensor_scaling,
    "topics": topics.topics,
}
"""Factories of experiments by name; the argument True selects the quick form."""


def find_experiment(name: str, quick: bool) -> Experiment:
    """Create the experiment with this name.

    Raises
    ------
    ExperimentError
        If the name is unknown.
    """
    try:
        make = EXPERIMENTS[name]
    except KeyError:
        raise ExperimentError(f"no experiment {name!r}; known: {', '.join(EXPERIMENTS)}") from None
    return make(quick)
