"""The reports of one run together: whose they are, read side by side, on one clock."""
