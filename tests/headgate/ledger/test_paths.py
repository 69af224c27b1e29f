"""Names of objects are recognized only as headgate writes them."""

import pytest

from headgate.ledger import paths


def test_numbers_are_read_back_from_names_which_sort_like_numbers() -> None:
    numbers = [1, 9, 10, 999, 10**11]
    names = [paths.chunk_name(number) for number in numbers]

    assert sorted(names) == names
    assert numbers == paths.chunk_numbers(names)
    assert numbers == [paths.snapshot_number(paths.snapshot_path(3, n).rsplit("/", 1)[1]) for n in numbers]
    assert (
        paths.chunk_path(3, 7)
        == f"{paths.chunk_folder(3)}/{paths.chunk_name(7)}"
        == "chunks/shard=0003/000000000007.parquet"
    )


@pytest.mark.parametrize(
    "name",
    [
        "README.txt",
        "7.parquet",
        "000000000007.parquet.tmp",
        "0000000000007.parquet",
        "00000000000x.parquet",
        "000000000007",
    ],
)
def test_other_names_are_foreign(name: str) -> None:
    assert paths.chunk_number(name) is None
    assert paths.snapshot_number(name) is None
    assert [1] == paths.chunk_numbers([name, paths.chunk_name(1)])


def test_digits_of_other_scripts_are_foreign() -> None:
    assert paths.chunk_number("\u0667" * 12 + ".parquet") is None
