"""What a person does with a job from the login node: list, watch, enter, capture, stop."""
