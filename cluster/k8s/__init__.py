"""Jobs for Kubernetes: manifests, what renders them, and what runs in their Pods."""
