"""How many replicas, and how fast work comes and goes.  Pure: no clock, no log, no I/O."""
