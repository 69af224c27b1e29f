"""What the journal of links and syncs says would be lost."""

from pathlib import Path

from chaos.fault_shim import SyncJournal


def test_a_name_is_lost_until_its_folder_is_synced_and_data_that_was_not_synced_before_its_name_always(tmp_path: Path):
    journal = SyncJournal(tmp_path / "library.so", tmp_path / "journal")
    (tmp_path / "journal").write_text("+ /a/1\n~ /b/1\n= /a\n+ /a/2 of two\n= /b\n")

    assert ({Path("/a/2 of two")}, {Path("/b/1")}) == journal.unsynced()
