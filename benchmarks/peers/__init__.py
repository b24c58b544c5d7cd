"""What people use instead, written the obvious way."""
