"""This machine: folders reached safely, processes, ports, the clock."""
