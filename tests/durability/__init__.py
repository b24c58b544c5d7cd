"""Faults at every call, real kills, power cuts, full disks, and sources that change."""
