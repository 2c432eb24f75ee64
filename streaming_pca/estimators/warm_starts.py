"""The estimators that another one can take its start from: all private ones, by id."""

from __future__ import annotations

from typing import Any

from streaming_pca.estimators.adadpo import AdaDPO
from streaming_pca.estimators.adaptive import AdaptivePCA
from streaming_pca.estimators.adaptive_power import AdaptivePowerMethod
from streaming_pca.estimators.analyze_gauss import AnalyzeGauss
from streaming_pca.estimators.base import Estimator
from streaming_pca.estimators.block import BlockPCA
from streaming_pca.estimators.dp_ojas import DPOjas
from streaming_pca.estimators.k_dp_pca import DPPCA, KDPPCA
from streaming_pca.estimators.noisy_power import NoisyPowerMethod
from streaming_pca.estimators.output_perturbation import OutputPerturbation
from streaming_pca.estimators.private_oja import PrivateOja

__all__ = ["WARM_STARTS"]

WARM_STARTS: dict[str, type[Estimator[Any, Any]]] = {
    e.card.id: e
    for e in (
        AdaDPO,
        AdaptivePCA,
        AdaptivePowerMethod,
        AnalyzeGauss,
        BlockPCA,
        DPOjas,
        DPPCA,
        KDPPCA,
        NoisyPowerMethod,
        OutputPerturbation,
        PrivateOja,
    )
}
