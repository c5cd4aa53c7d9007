"""Manifests that bring a server up elsewhere: Kubernetes on GKE, and what is built on it; a plain TPU VM."""
