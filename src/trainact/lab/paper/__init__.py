"""All numbers that the paper prints, as data with their places.

TrAct: Making First-layer Pre-Activations Trainable (Petersen, Borgelt, Ermon, NeurIPS 2024). The
TOML files hold the tables and the numbers of the text as printed; titles and notes are ours. Curves
in figures have no numbers here, only their places.
"""
