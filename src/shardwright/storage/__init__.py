"""Where bytes live: on the disks of this machine, or at an object store. Nobody else asks."""
