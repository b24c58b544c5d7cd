"""Where tasks run: this process, or several on this machine."""
