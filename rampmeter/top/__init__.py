"""`rampmeter top`: classes, pools, tenants and consumers as they are now."""
