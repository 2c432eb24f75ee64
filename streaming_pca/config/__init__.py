"""Settings: models, sources, effective values and their reference."""
