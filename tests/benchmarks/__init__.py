"""`python -m tests.benchmarks`: what admission and the whole path cost on this machine, beside simple rivals."""
