"""Plain classes as Ray actors, and their clients: the only package that imports Ray."""
