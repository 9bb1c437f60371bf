"""Engines behind the protocol of `gpu_consumers.engine`."""
