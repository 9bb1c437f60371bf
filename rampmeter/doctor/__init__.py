"""`rampmeter doctor`: whether what Rampmeter stands on is as it must be, and which pattern a slow pipeline shows."""
