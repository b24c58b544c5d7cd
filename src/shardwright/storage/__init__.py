"""Where bytes live: durable files in local folders, locked while written."""
