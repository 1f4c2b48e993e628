"""One job's facts: its knobs, its site, its folders, where it is remembered."""
