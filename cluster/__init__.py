"""Jobs on SLURM, on Kubernetes and on this machine; plans of what they take; a check-up of the nodes."""
