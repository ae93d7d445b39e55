"""What a training costs on paper: memory, time, network."""
