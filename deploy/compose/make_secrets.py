"""Make the files that are missing, each with a random secret for its owner and its group to read.

Arguments: their paths. Nothing is printed, and a file that is there is left as it is.
"""

import os
import secrets
import sys

for path in sys.argv[1:]:
    if os.path.exists(path):
        continue
    # Under another name first: a container that is stopped meanwhile leaves no half of a secret.
    scratch = f"{path}.new"
    with open(os.open(scratch, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o640), "w") as file:
        file.write(secrets.token_urlsafe(32))
    os.rename(scratch, path)
