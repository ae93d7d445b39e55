"""Jobs for SLURM and Kubernetes."""
