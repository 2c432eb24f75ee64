"""Privacy: parameters, calibration, the noise sampler, mechanisms and the ledger.

This package imports nothing at its top, so that a producer that only needs a
mechanism does not pay for an accountant.
"""
