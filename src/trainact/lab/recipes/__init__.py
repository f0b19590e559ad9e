"""What is a run? Recipes as typed data, experiments and their arms."""
