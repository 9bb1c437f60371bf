"""How the pieces run together: image, compose file, and what Kubernetes is given."""
