"""Batches in a torch DataLoader. Skipped where torch is not installed: it is an extra."""

from __future__ import annotations

import os
import pickle
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardwright
from tests.shards.packed import expected, packed

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own

SAMPLES = 31


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(tmp_path_factory.mktemp("made"), SAMPLES)


def order(batches: Any) -> list[list[str]]:  # noqa: ANN401 - anything that gives batches
    return [batch["image_id"] for batch in batches]


def loader(dataset: Any, workers: int, **options: Any) -> Any:  # noqa: ANN401
    from torch.utils.data import DataLoader

    return DataLoader(dataset, batch_size=None, num_workers=workers, **options)


@pytest.mark.parametrize(("workers", "method"), [(0, None), (2, "fork"), (3, "fork"), (1, "spawn")])
def test_torch_workers_give_every_batch_once_and_in_order(
    shards: Path, workers: int, method: str | None
) -> None:
    batches = shardwright.open(shards).batches(4, seed=2)
    found = list(loader(batches.torch(), workers, multiprocessing_context=method))
    assert order(found) == order(batches)
    for batch in found:
        assert batch["vae.npy"].dtype == torch.float16
        for name in expected("img0"):
            stacked = np.stack([expected(image_id)[name] for image_id in batch["image_id"]])
            np.testing.assert_array_equal(batch[name].numpy(), stacked)


def test_workers_hand_their_tensors_over_without_a_copy(shards: Path) -> None:
    from torch.utils.data import get_worker_info

    batch = next(iter(loader(shardwright.open(shards).batches(4).torch(), 1)))
    tensors = [batch[name] for name in expected("img0")]
    assert all(tensor.is_shared() and tensor.data_ptr() % 64 == 0 for tensor in tensors)
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1
    assert get_worker_info() is None
    assert not next(iter(shardwright.open(shards).batches(4).torch()))["vae.npy"].is_shared()


def test_workers_need_hardly_any_room_in_dev_shm(shards: Path) -> None:
    script = (
        "import sys, shardwright\n"
        "from torch.utils.data import DataLoader\n"
        "batches = shardwright.open(sys.argv[1]).batches(4).torch()\n"
        "print(len(list(DataLoader(batches, batch_size=None, num_workers=1))))\n"
    )
    own = ["unshare", "--mount", "--map-root-user", "sh", "-c"]  # a /dev/shm of its own, as Docker
    small = "mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "
    if (
        not shutil.which("unshare")
        or subprocess.run([*own, f"{small} true"], capture_output=True).returncode
    ):
        pytest.skip("mounting is not allowed here")
    done = subprocess.run(
        [*own, f'{small} "$@"', "sh", sys.executable, "-W", "ignore", "-c", script, str(shards)],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert (done.stdout, done.stderr) == ("7\n", "")


def allow_little(worker: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))


def test_a_batch_that_cannot_be_shared_is_an_error(shards: Path) -> None:
    batches = shardwright.open(shards).batches(4).torch()
    with pytest.raises(shardwright.StorageError, match="no memory left to share a batch"):
        list(loader(batches, 1, worker_init_fn=allow_little))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_resumes_after_any_batch(shards: Path, workers: int) -> None:
    complete = order(shardwright.open(shards).batches(4, epoch=1))
    first = shardwright.open(shards).batches(4, epoch=1).torch()
    states = [batch["__state__"] for batch in loader(first, workers)]
    for number in (0, 3, len(complete) - 1):
        resumed = shardwright.open(shards).batches(4).torch()
        resumed.load_state_dict(states[number])
        assert resumed.epoch == 1
        assert order(loader(resumed, workers)) == complete[number + 1 :]


def test_a_batch_without_arrays_comes_from_workers_too(shards: Path) -> None:
    batches = shardwright.open(shards).fields("json").batches(4)
    found = list(loader(batches.torch(), 1))
    assert order(found) == order(batches)
    assert all(not torch.is_tensor(value) for batch in found for value in batch.values())


def test_without_workers_the_state_is_that_of_the_last_batch(shards: Path) -> None:
    batches = shardwright.open(shards).batches(4).torch()
    for batch in batches:
        assert batches.state_dict() == batch["__state__"]


def test_workers_that_persist_learn_of_another_epoch(shards: Path) -> None:
    dataset = shardwright.open(shards)
    batches = dataset.batches(4).torch()
    persistent = loader(batches, 2, persistent_workers=True)
    for epoch in (0, 1, 5):
        batches.set_epoch(epoch)
        assert order(persistent) == order(dataset.batches(4, epoch=epoch))


@pytest.mark.filterwarnings("error:Length of IterableDataset")
def test_epochs_with_repeats_differ_in_length_and_workers_give_all_of_each(shards: Path) -> None:
    dataset = shardwright.open(shards)
    repeats = np.linspace(0, 2, SAMPLES)
    batches = dataset.batches(3, seed=1, repeats=repeats).torch()
    persistent = loader(batches, 2, persistent_workers=True)
    lengths = []
    for epoch in range(4):
        batches.set_epoch(epoch)
        lengths.append(len(persistent))
        found = order(persistent)
        assert found == order(dataset.batches(3, seed=1, epoch=epoch, repeats=repeats))
        assert len(found) == lengths[-1]
    assert len({*lengths}) > 1


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_a_stateful_loader_resumes_in_mid_epoch_and_goes_on_to_the_next(
    shards: Path, workers: int
) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    dataset = shardwright.open(shards)
    complete, following = (order(dataset.batches(2, epoch=epoch)) for epoch in (0, 1))
    options = {"batch_size": None, "num_workers": workers}
    first = stateful(dataset.batches(2).torch(), **options)
    iterator = iter(first)
    begun: list[list[str]] = []
    for stop in (1, 4, 9):
        begun += order(next(iterator) for _ in range(stop - len(begun)))
        state = pickle.loads(pickle.dumps(first.state_dict()))
        batches = dataset.batches(2).torch()
        second = stateful(batches, **options)
        second.load_state_dict(state)
        assert begun + order(second) == complete
        batches.set_epoch(1)
        assert order(second) == following


@pytest.mark.parametrize("workers", [0, 1])
def test_a_shard_that_changes_underneath_is_noticed_in_workers_too(
    shards: Path, tmp_path: Path, workers: int
) -> None:
    folder = shutil.copytree(shards, tmp_path / "shards")
    batches = shardwright.open(folder).batches(4).torch()
    os.truncate(folder / "bucket_64x64" / "shard-000000.tar", 10)
    with pytest.raises(
        shardwright.SourceChangedError, match=r"shard-000000\.tar: changed since the folder"
    ):
        list(loader(batches, workers))


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_have_different_samples_whatever_their_workers(shards: Path, workers: int) -> None:
    dataset = shardwright.open(shards)
    ranks = [
        order(loader(dataset.batches(3, rank=rank, world_size=3).torch(), workers))
        for rank in range(3)
    ]
    assert [len(batches) for batches in ranks] == [3, 3, 3]
    seen = [image_id for batches in ranks for batch in batches for image_id in batch]
    assert len(set(seen)) == len(seen) == 27
