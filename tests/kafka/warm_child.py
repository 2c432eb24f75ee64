"""Only the fork server imports this module: it compiles kernels for children, not at collection."""

import tests.kafka.admin.killed  # noqa: F401
from tests.kafka.child import warm_up

warm_up()
