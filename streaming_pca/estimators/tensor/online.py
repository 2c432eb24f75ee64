"""Online tensor power method without privacy: a power step a batch, in linear memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from streaming_pca.data.batch import Batch
from streaming_pca.data.preprocessing import transformed
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import Estimator, EstimatorInfo, Plan, State, Subspace, SuiteOptions
from streaming_pca.estimators.tensor.search import TensorOptions, TensorSearch, tensor_subspace
from streaming_pca.kernels.lattice import BLOCK
from streaming_pca.linalg.tensors import products_of_rows
from streaming_pca.privacy.parameters import Charge

_LARGEST = 1e50  # largest entry of a record that counts: cubes of larger ones would overflow


class OnlineTensorOptions(TensorOptions):
    """Settings of :class:`OnlineTensorPower`: n, L and R of [WangAnandkumar2016, Alg. 2]."""


@dataclass(frozen=True)
class OnlineTensorState(State):
    """Candidates and components: O(d (k + L)) numbers."""

    search: TensorSearch


class OnlineTensorPower(Estimator[OnlineTensorState, OnlineTensorOptions]):
    """Online robust tensor power method [WangAnandkumar2016, Alg. 2]. **Not private.**

    Components of E[x (x) x (x) x], assumed sum_i lambda_i v_i (x) v_i (x) v_i with
    orthonormal v_i and lambda_i > 0 (Assumption 3.1).

    ============  ==================================================================
    step 3        ``init``, and :class:`~streaming_pca.estimators.tensor.search.TensorSearch`
                  after a component
    steps 5, 6    ``update``: fresh records for every power step
    steps 7 - 10  :class:`~streaming_pca.estimators.tensor.search.TensorSearch`
    step 12       ``release``
    ============  ==================================================================

    Deviations from the paper
    -------------------------
    - Step 6 adds x_i where it means x_l, the record; step 7: see :mod:`streaming_pca.linalg.tensors`.
    - After the last component: see :mod:`streaming_pca.estimators.tensor.search`. R n records
      find a component, so all are found after k R batches.
    - A record is one row x. A factor of more rows has no third moment: it counts
      as null, as does a record with an entry above 1e50.
    - If the model is x = h + noise, E[x (x) x (x) x] has terms of the noise's
      second moment and of E[h]; three views of h, or a centre, are the remedy.
    - Centring: "none", or a public vector. "pairs" would make every third moment zero.

    Privacy
    -------
    None, as of :class:`~streaming_pca.estimators.oja.oja.OjaPCA`: each record costs infinity.
    """

    info = EstimatorInfo(
        id="tensor-online",
        source="WangAnandkumar2016, Algorithm 2",
        private=False,
        needs="private = false, and a third moment with orthogonal components",
        summary="components of the third moment by power steps on fresh records, without noise",
        releases="tensor",
    )
    suite_options: ClassVar[SuiteOptions] = SuiteOptions({"batch_size": 64, "restarts": 3, "steps": 1})
    centerings: ClassVar[tuple[str, ...]] = ("none",)
    kinds: ClassVar[frozenset[RecordKind]] = frozenset({RecordKind.FACTOR})

    def init(self, rng: np.random.Generator) -> OnlineTensorState:
        restarts = self.options.effective_restarts(self.k)
        return OnlineTensorState(0, 0, TensorSearch.start(rng, self.dim, self.k, restarts))

    def plan_mechanisms(self, state: OnlineTensorState) -> Plan:
        """Plan n records; any number is of use."""
        return Plan(self.options.batch_size, 1, 1, Charge.unbounded(), {"mechanism": "none"})

    def learn_batch(self, state: OnlineTensorState, batch: Batch) -> tuple[OnlineTensorState, int]:
        """Make one power step; nothing is clipped."""
        queries = state.search.queries
        products = np.zeros_like(queries)
        for block in batch.blocks(BLOCK):
            _, rows = transformed(self.preprocessing, block.single_rows())
            products += products_of_rows(rows[np.abs(rows).max(axis=1) <= _LARGEST], queries)
        products /= max(len(batch), 1)
        search = state.search.learn(products, self.options.steps_in(self.dim), self.options.window)
        return replace(state, search=search), 0

    def learnt_subspace(self, state: OnlineTensorState) -> Subspace:
        return tensor_subspace(state.search.weights, state.search.components)
