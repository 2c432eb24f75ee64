"""Worker that projects records of a stream's input with its latest release.

The projections are functions of single records: they are neither charged nor private.
"""
