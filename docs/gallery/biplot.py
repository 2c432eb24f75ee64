# %% [markdown]
# # Biplot
#
# Which features form a component? `plots.biplot` draws the longest loadings as arrows with the names of the
# features. Arrows are private; points of records are not, and are drawn only if you pass them.

# %%
import numpy as np
import pandas as pd
from matplotlib import pyplot as plt

from streaming_pca import FeatureMap, PrivatePCA, plots

# %% [markdown]
# The customers of this page are synthetic: 100,000 rows with two hidden traits, wealth and activity, and some
# noise. The bounds are public: they come from the questionnaire, not from the answers. `FeatureMap` scales
# each column by its bounds, so that units do not decide the result.

# %%
rng = np.random.default_rng(0)
n = 100_000
wealth, activity = rng.standard_normal((2, n))


def answer(mean: float, of_wealth: float, of_activity: float, noise: float) -> np.ndarray:
    return mean + of_wealth * wealth + of_activity * activity + noise * rng.standard_normal(n)


customers = pd.DataFrame(
    {
        "income": answer(50, 16, 0, 6),
        "rent": answer(1000, 300, 0, 120),
        "savings": answer(40, 13, -3, 6),
        "debt": answer(20, -5, 1, 4),
        "visits": answer(20, 0, 6, 2),
        "purchases": answer(12, 2, 3, 1.5),
        "returns": answer(5, 0, 1.2, 0.8),
        "age": answer(45, 3, -4, 9),
    }
)
bounds = {
    "income": (0, 100),
    "rent": (0, 2000),
    "savings": (0, 80),
    "debt": (0, 40),
    "visits": (0, 40),
    "purchases": (0, 24),
    "returns": (0, 10),
    "age": (0, 90),
}
features = FeatureMap.from_frame(customers, bounds=bounds)
model = PrivatePCA(2, epsilon=1.0, delta=1e-6, features=features).fit(customers)

# %% [markdown]
# ## Arrows
#
# An arrow shows the entries of two components for one feature. Features with arrows in one direction rise
# together, those in opposite directions fall while the other rises, and a short arrow has little part in both
# components. The labels are placed so that none overlaps another. This figure is post-processing of the
# model: each customer has the guarantee of epsilon 1 and delta 1e-6.

# %%
ax = plots.biplot(model)
plt.show()

# %% [markdown]
# ## Points
#
# A point is the projection of one customer. It is a function of that customer's record, without noise, so
# **a figure with points is not private**, whatever epsilon is. These customers do not exist, so this page may
# show 500 of them. All points are multiplied by one factor, to fit the arrows.

# %%
ax = plots.biplot(model, customers[:500])
plt.show()

# %% [markdown]
# ## Claims

# %%
loadings = dict(zip(model.feature_names_in_, model.components_.T, strict=True))


def cosine(first: str, second: str) -> float:
    a, b = loadings[first], loadings[second]
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


assert cosine("income", "rent") > 0.95
assert cosine("income", "debt") < -0.9
assert abs(cosine("income", "visits")) < 0.3
assert ax.get_legend().get_texts()[0].get_text().startswith("records (not private)")
