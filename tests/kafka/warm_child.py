"""Imported by the fork server alone: kernels are compiled where children need them, not at collection."""

from tests.kafka.child import warm_up

warm_up()
