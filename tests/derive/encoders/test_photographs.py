"""Real photographs: what derive makes of them equals what a plain script makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.agreement import FITS, Error, Subject, compare, small

# Both in the public domain: a rocket by SpaceX, with a colour profile, and Grace Hopper by the
# U.S. Navy.
PHOTOGRAPHS = Path(__file__).parents[1] / "photographs"


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    return small(tmp_path_factory.mktemp("models"), ["AutoencoderKL", "AutoencoderDC"])


@pytest.mark.parametrize("fit", FITS)
def test_photographs_and_captions_are_encoded_as_a_plain_script_encodes_them(
    subjects: dict[str, Subject], fit: str, tmp_path: Path
) -> None:
    errors = compare(PHOTOGRAPHS, subjects, fit, tmp_path)
    assert len(errors) == 12
    for name, error in errors.items():
        assert error.largest < error.rounding / 5, name
        assert error.mean < 1e-4, name


def test_an_error_of_agreement_is_relative_and_the_worst_of_all() -> None:
    import numpy as np

    expected = [np.array([2.0, -4.0]), np.array([1.0, 1.0])]
    found = [np.array([2.0, -4.4]), np.array([1.0, 1.05])]
    error = Error.of(found, expected)
    assert (error.largest, error.mean) == pytest.approx((0.1, 0.4 / 6))
    assert error.rounding == 0, "float16 holds these numbers exactly"
