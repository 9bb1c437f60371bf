"""What people touch: command, client, console, simulator and audit tools."""
