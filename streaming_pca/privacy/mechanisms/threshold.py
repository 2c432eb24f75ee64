"""AboveThreshold: the sparse vector technique for one alarm."""

from __future__ import annotations

from streaming_pca.privacy.errors import ParameterError, require_count
from streaming_pca.privacy.mechanisms.laplace import laplace_scale
from streaming_pca.privacy.randomness import noise_sampler


class AlreadyFired(RuntimeError):
    """Query of an AboveThreshold that has answered "above" before."""


class AboveThreshold:
    """Noisy comparison of integer queries with a threshold, until one is above.

    Parameters
    ----------
    threshold : int
        Public.
    epsilon : float
        Cost of all answers together.
    sensitivity : int
        Largest change of a query when one record is replaced.

    Attributes
    ----------
    fired : bool
        True once a query was above: further queries are refused.

    Raises
    ------
    ParameterError
        If a parameter is out of its range.

    Notes
    -----
    Released: for each query "below", until one is "above", and then nothing.
    Adjacency: replace-one, and all queries on the same records. Any number of
    answers "below" costs nothing beyond the one epsilon, also when each query
    is chosen after the answers before it.

    The threshold gets discrete Laplace noise r of scale 2 D/epsilon once, each
    query q_i fresh noise of scale 4 D/epsilon, D the sensitivity. Let the
    answer be "below" k - 1 times and then "above", and fix the draws of the
    queries before k. On a neighbour those q_i + noise rise by at most D; so if
    r rises by D too, they stay below, at a price of e^(D/(2 D/epsilon)) =
    e^(epsilon/2) for the probability of r; and the k-th stays above if its own
    noise rises by at most 2 D, at a price of e^(2 D/(4 D/epsilon)) =
    e^(epsilon/2). Both shifts are integers, so the sums over the integers map
    to themselves, and the product is e^epsilon; a sequence that never fires
    pays the first factor only. A noise drawn again for the threshold, or an
    answer that shows the noisy query, would break this, and neither is done.

    A draw beyond int64 saturates. At the largest scale that is accepted that
    has probability below e^(-2**22) a draw, which no delta in use can see.

    Source: [DworkRoth2014, Alg. 1]; [LyuSuLi2017, Alg. 1].
    """

    def __init__(self, threshold: int, epsilon: float, sensitivity: int = 1) -> None:
        if isinstance(threshold, bool) or not isinstance(threshold, int):
            raise ParameterError(f"threshold must be a whole number, not {threshold!r}")
        require_count("sensitivity", sensitivity)
        self._scale = laplace_scale(4 * sensitivity, epsilon)
        if self._scale > 2.0**40:
            raise ParameterError(f"epsilon = {epsilon!r} is too small for a sensitivity of {sensitivity}")
        (noise,) = noise_sampler().discrete_laplace(1, laplace_scale(2 * sensitivity, epsilon)).tolist()
        self._level: int = threshold + noise
        self._fired = False

    @property
    def fired(self) -> bool:
        """True once a query was above."""
        return self._fired

    def ask(self, query: int) -> bool:
        """Return whether the noisy query is at least the noisy threshold.

        Raises
        ------
        ParameterError
            If the query is of another type than int.
        AlreadyFired
            After an answer True.
        """
        if isinstance(query, bool) or not isinstance(query, int):
            raise ParameterError(f"query must be an int, not {type(query).__name__}")
        if self._fired:
            raise AlreadyFired("this AboveThreshold has fired: a new one, with its own epsilon, is needed")
        (noise,) = noise_sampler().discrete_laplace(1, self._scale).tolist()
        self._fired = query + noise >= self._level
        return self._fired
