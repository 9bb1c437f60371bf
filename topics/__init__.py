"""What the processes agree on: names, records, codec and clients."""
