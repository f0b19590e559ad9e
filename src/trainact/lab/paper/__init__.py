"""Every number that the paper prints, as data with its place.

TrAct: Making First-layer Pre-Activations Trainable (Petersen, Borgelt, Ermon, NeurIPS 2024). The
TOML files beside this module hold the tables and the numbers of the text, each as printed; titles
and notes are ours. What the paper shows as curves has no number here, only its place.
"""

from trainact.lab.paper.lookup import (
    find_places,
    find_printed,
    list_networks,
    list_recipes,
    printed_values,
)
from trainact.lab.paper.settings import PrintedSettings, list_settings, read_settings
from trainact.lab.paper.tables import (
    PrintedFigure,
    PrintedRow,
    PrintedTable,
    list_tables,
    read_figures,
    read_table,
)
from trainact.lab.paper.times import PrintedTime, read_times
from trainact.lab.paper.values import METRICS, Key, PrintedValue

__all__ = [
    # numbers
    "METRICS",
    "Key",
    "PrintedValue",
    "find_printed",
    "printed_values",
    # tables and figures
    "PrintedFigure",
    "PrintedRow",
    "PrintedTable",
    "find_places",
    "list_networks",
    "list_recipes",
    "list_tables",
    "read_figures",
    "read_table",
    # times
    "PrintedTime",
    "read_times",
    # settings
    "PrintedSettings",
    "list_settings",
    "read_settings",
]
