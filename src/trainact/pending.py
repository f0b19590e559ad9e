"""Calls of synchronised layers whose backward is still to come.

Two ranks may reach two such layers in different orders. Each would then wait for a sum that the
other begins only later, a deadlock whatever the process groups. So the first call that a backward
reaches begins the sums of all calls which that backward will reach: the inputs are at hand, and the
engine knows. Sums of one layer begin in the order of its calls.
"""

import weakref
from typing import Any

import torch

__all__ = ["remember_call", "take_calls_of_this_backward"]

_calls: list[weakref.ref[Any]] = []


def remember_call(node: Any) -> None:
    """Keep in mind, without keeping it alive, the graph node of a call."""
    node.task = None
    _calls[:] = [call for call in _calls if call() is not None]
    _calls.append(weakref.ref(node))


def take_calls_of_this_backward() -> list[Any]:
    """Return the nodes that the running backward will reach, in forward order, each node once."""
    task = torch._C._current_graph_task_id()
    taken = []
    for node in (call() for call in tuple(_calls)):
        if node is not None and node.task != task and torch._C._will_engine_execute_node(node):
            node.task = task
            taken.append(node)
    return taken
