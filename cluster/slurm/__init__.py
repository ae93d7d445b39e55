"""Jobs for SLURM: the job files, and what runs in them."""
