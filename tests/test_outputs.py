"""Where output may go."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shardwright import StorageError, pack
from shardwright.storage.local import require_writable
from tests.stores import Store


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_a_file_system_that_takes_no_files_is_not_called_full(store: Store) -> None:
    with pytest.raises(StorageError, match=r"^/proc: cannot be written to; allow it, or give ano"):
        pack(derived_dir=store.root, output_dir="/proc/shards")


def test_a_folder_that_is_yet_to_be_made_is_writable_where_its_parent_is(tmp_path: Path) -> None:
    require_writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
