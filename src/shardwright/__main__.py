"""``python -m shardwright``."""

import sys

from shardwright.cli.main import main

sys.exit(main())
