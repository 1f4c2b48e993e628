"""From what a person asks to one sbatch line: checked, shown, sent."""
