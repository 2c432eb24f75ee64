"""Only the fork server imports this module: it compiles kernels for children, not at collection."""

from tests.kafka.child import warm_up

warm_up()
