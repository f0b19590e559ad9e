"""The evidence: commands that measure, train and report; it imports the method, not vice versa."""
