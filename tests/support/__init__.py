"""What tests share: a clock that stands still, builders of records, fixtures of real services."""
