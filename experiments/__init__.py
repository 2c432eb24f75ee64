"""Figures and tables of the papers, run again: `python -m experiments NAME`."""
