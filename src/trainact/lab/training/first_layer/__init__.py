"""Other rules for training the first layer than TrAct's, and the optimizer Muon."""
