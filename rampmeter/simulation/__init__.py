"""The pipeline in virtual time: the policies that run in production, beside baselines and the physical limit."""
