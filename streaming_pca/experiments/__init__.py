"""Public data and the papers' figures and tables, as importable code and commands."""
