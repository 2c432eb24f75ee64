"""Reproductions of figures and tables of the papers: `python -m experiments NAME`."""
