"""Pipeline schedules: the order of work per rank, its simulation, and the closed forms over tables."""

from shardwise.engine.schedule.actions import Action
from shardwise.engine.schedule.closed_form import in_flight, pipeline_seconds
from shardwise.engine.schedule.orders import instruction_order
from shardwise.engine.schedule.simulate import Timeline, simulate

__all__ = ["Action", "Timeline", "in_flight", "instruction_order", "pipeline_seconds", "simulate"]
