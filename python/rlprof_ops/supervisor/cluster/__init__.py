"""What the head alone does: it knows of all nodes, and makes the manifest and the report at the end."""
