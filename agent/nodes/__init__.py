"""The graph's nodes, one file each. A node returns only the state keys that it changes."""
