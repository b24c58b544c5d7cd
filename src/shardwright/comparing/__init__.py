"""Which samples are copies of each other: identical files, and images that are nearly alike."""
