"""What the panels of every topic are made of."""
