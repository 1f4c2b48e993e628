"""`RayJob`: the whole chain as a callable for submitit."""
