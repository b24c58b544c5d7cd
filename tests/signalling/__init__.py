"""A hook of Python that signals the process of a command while it starts."""
