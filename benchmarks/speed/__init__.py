"""How fast the commands are, beside tools that do a part of the same. Run `benchmarks/run.py`."""
