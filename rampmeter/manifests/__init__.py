"""What Kubernetes runs, as plain data: made from the settings and a few values, for Kustomize and Helm alike."""
