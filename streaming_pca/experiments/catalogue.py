"""Every experiment by its name."""

from __future__ import annotations

from collections.abc import Callable

from streaming_pca.experiments.adadpo_figures import adadpo_fig1, adadpo_fig2, adadpo_fig3
from streaming_pca.experiments.adaptive_power_figures import power_coherence, power_epsilon, power_n
from streaming_pca.experiments.experiment import Experiment
from streaming_pca.experiments.kdppca_figures import kdppca_fig1, kdppca_fig2, kdppca_fig3, kdppca_fig4
from streaming_pca.experiments.local_figures import ldp_fig1, ldp_fig2, ldp_fig3, ldp_fig4
from streaming_pca.experiments.local_tables import ldp_table1, ldp_table2
from streaming_pca.experiments.results import ExperimentError
from streaming_pca.experiments.tensor_figures import tensor_fig1, tensor_scaling
from streaming_pca.experiments.topics import topics

__all__ = ["EXPERIMENTS", "find_experiment"]

EXPERIMENTS: dict[str, Callable[[bool], Experiment]] = {
    "adadpo-fig1": adadpo_fig1,
    "adadpo-fig2": adadpo_fig2,
    "adadpo-fig3": adadpo_fig3,
    "kdppca-fig1": kdppca_fig1,
    "kdppca-fig2": kdppca_fig2,
    "kdppca-fig3": kdppca_fig3,
    "kdppca-fig4": kdppca_fig4,
    "adaptive-power-coherence": power_coherence,
    "adaptive-power-n": power_n,
    "adaptive-power-epsilon": power_epsilon,
    "ldp-fig1": ldp_fig1,
    "ldp-fig2": ldp_fig2,
    "ldp-fig3": ldp_fig3,
    "ldp-fig4": ldp_fig4,
    "ldp-table1": ldp_table1,
    "ldp-table2": ldp_table2,
    "tensor-fig1": tensor_fig1,
    "tensor-scaling": tensor_scaling,
    "topics": topics,
}
"""Every experiment by its name: in full, or (True) in its quick form."""


def find_experiment(name: str, quick: bool) -> Experiment:
    """The experiment with this name; ExperimentError lists the known ones."""
    try:
        return EXPERIMENTS[name](quick)
    except KeyError:
        raise ExperimentError(f"no experiment {name!r}; known: {', '.join(EXPERIMENTS)}") from None
