# %% [markdown]
# # Scree plot
#
# How many components rise above the noise? `plots.scree` draws each component's share of the variance
# with its standard error, and one bar for all other directions together.

# %%
import warnings

import numpy as np
from matplotlib import pyplot as plt
from sklearn.decomposition import PCA

from streaming_pca import DoubtfulResultWarning, PrivatePCA, plots

# %% [markdown]
# The records are synthetic: 100,000 rows of 40 features that follow four factors. The other 36 directions
# have the same small variance. The bounds are public: they come from the design of the data, not from its
# rows.

# %%
rng = np.random.default_rng(0)
deviations = np.full(40, 0.5)
deviations[:4] = [4.0, 3.0, 2.0, 1.2]
directions = np.linalg.qr(rng.standard_normal((40, 40)))[0]
X = rng.standard_normal((100_000, 40)) * deviations @ directions

exact = PCA(4).fit(X)
private = PrivatePCA(4, epsilon=1.0, delta=1e-6, bounds=(-12, 12)).fit(X)

# %% [markdown]
# Both plots have a bar for the rest, so that a reader sees what four components leave out. Without it four
# bars look like the whole variance. The dashed line is the mean share of one of the 36 other directions: a
# component near it explains as little as any of these.
#
# The title of the private plot has the angle bound: with probability 0.95 the noise turned the components
# by a smaller angle. All numbers in the private plot are post-processing of the model. The exact plot has
# no privacy.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
plots.scree(exact, ax=left).set_title("exact, not private")
plots.scree(private, ax=right)
plt.show()

# %% [markdown]
# ## Too many components
#
# The fifth and sixth direction have the variance of all others, so noise alone decides which ones they are.
# The model reports this as a doubt: `fit` warns, and the plot names the doubt in its title.

# %%
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", DoubtfulResultWarning)
    six = PrivatePCA(6, epsilon=1.0, delta=1e-6, bounds=(-12, 12)).fit(X)
print(caught[0].message)
plots.scree(six)
plt.show()

# %% [markdown]
# ## Claims
#
# The last cell of each script checks what the page states. The noise is real and differs in each run. Each
# statement has enough slack to fail by chance in fewer than one of a million runs.

# %%
differences = private.explained_variance_ - exact.explained_variance_
assert np.all(np.abs(differences) < 8 * private.explained_variance_error_)
assert abs(private.explained_variance_ratio_.sum() - exact.explained_variance_ratio_.sum()) < 0.1
assert private.doubts_ == ()
assert "not-resolved" in six.doubts_
