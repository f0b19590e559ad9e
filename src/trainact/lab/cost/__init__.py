"""Time and work: what TrAct adds to a step, counted and measured."""
