"""What is measured instead of computed. Needs torch, which is imported when something is measured only."""
