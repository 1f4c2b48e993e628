"""Around Ray on Slurm: nodes, ports, readiness, the node supervisor."""
