"""Tests of Rampmeter: unit (no I/O), integration (one process, real parts), acceptance (all processes)."""
