"""Jobs on this machine, for trying."""
