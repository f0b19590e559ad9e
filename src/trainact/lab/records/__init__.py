"""The files of runs: records, checkpoints and failures; and the events of a running run."""
