"""Parts shared by estimators: budget, clipped sums, norms, centres, error bounds, states."""
