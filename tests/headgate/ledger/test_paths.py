"""Names of objects are recognized only as headgate writes them."""

import pytest

from headgate.ledger import objects


def test_numbers_are_read_back_from_names_which_sort_like_numbers() -> None:
    numbers = [1, 9, 10, 999, 10**11]
    names = [objects.chunk_name(number) for number in numbers]

    assert sorted(names) == names
    assert numbers == objects.chunk_numbers(names)
    assert numbers == [objects.snapshot_number(objects.snapshot_path(3, n).rsplit("/", 1)[1]) for n in numbers]
    assert (
        objects.chunk_path(3, 7)
        == f"{objects.chunk_folder(3)}/{objects.chunk_name(7)}"
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
    assert objects.chunk_number(name) is None
    assert objects.snapshot_number(name) is None
    assert [1] == objects.chunk_numbers([name, objects.chunk_name(1)])


def test_digits_of_other_scripts_are_foreign() -> None:
    assert objects.chunk_number("\u0667" * 12 + ".parquet") is None
