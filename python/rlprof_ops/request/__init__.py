"""What a person asks: steps, selectors, the profile request, and the plan made of it. Pure."""
