"""What the commands do: plain functions with explicit arguments that return results."""
