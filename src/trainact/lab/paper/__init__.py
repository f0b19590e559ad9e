"""All numbers that the paper prints, as data with their places.

TrAct: Making First-layer Pre-Activations Trainable (Petersen, Borgelt, Ermon, NeurIPS 2024). The
TOML files hold the tables and the numbers of the text as printed; titles and notes are ours. Curves
in figures have no numbers here, only their places.
"""

from trainact.lab.paper.hyperparameters import (
    Hyperparameters,
    list_hyperparameters,
    read_hyperparameters,
)
from trainact.lab.paper.lookup import (
    find_places,
    find_printed,
    list_networks,
    list_recipes,
    printed_values,
)
from trainact.lab.paper.tables import (
    PrintedFigure,
    PrintedRow,
    PrintedTable,
    PrintedTime,
    list_tables,
    read_figures,
    read_table,
    read_times,
)
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
    # hyperparameters
    "Hyperparameters",
    "list_hyperparameters",
    "read_hyperparameters",
]
