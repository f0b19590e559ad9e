"""Many runs: one after another, side by side, or on a cluster."""
