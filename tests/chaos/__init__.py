"""Everything that may go wrong around the processes, done to them under load, and what must hold all the same."""
