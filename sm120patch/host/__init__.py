"""The host: which machine and GPUs, who uses the environment, which servers run. Reads only."""
