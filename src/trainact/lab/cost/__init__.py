"""Cost of TrAct and of runs: multiply-adds, estimates and measurements."""
