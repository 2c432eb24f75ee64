"""Library: the private estimators with the interface of scikit-learn."""

from streaming_pca.api.budget import BudgetAccountant, BudgetError
from streaming_pca.api.feature_map import FeatureMap
from streaming_pca.api.model_file import ModelFileError
from streaming_pca.api.private_pca import PrivatePCA
from streaming_pca.estimators.registry import DEFAULT_ESTIMATOR

__all__ = [
    "DEFAULT_ESTIMATOR",
    "BudgetAccountant",
    "BudgetError",
    "FeatureMap",
    "ModelFileError",
    "PrivatePCA",
]
