"""Local model, for producers: records become private before they are sent.

It trusts the user's own device alone. It needs NumPy, SciPy and mpmath, and only
modules of this package that import only these.
"""

from streaming_pca.local.accountant import AccountantError, AlreadySpent, LocalAccountant
from streaming_pca.local.gaussian import MAX_DIM, LocalGaussian, noise_sigma
from streaming_pca.local.headers import contract_header, report_headers

__all__ = [
    "MAX_DIM",
    "AccountantError",
    "AlreadySpent",
    "LocalAccountant",
    "LocalGaussian",
    "contract_header",
    "noise_sigma",
    "report_headers",
]
