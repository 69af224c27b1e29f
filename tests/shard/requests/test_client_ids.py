"""Two programs with one client id are noticed, and a restarted program is not mistaken for two."""

from headgate.protocol.codec import Presence
from shard.requests import client_ids
from shard.requests.client_ids import ClientIds, Conflict


def online(incarnation: int | None, client_id: str = "shop/till") -> Presence:
    return Presence(client_id=client_id, online=True, incarnation=incarnation)


def gone(incarnation: int) -> Presence:
    return Presence(client_id="shop/till", online=False, incarnation=incarnation)


def test_an_older_program_behind_a_newer_one_is_a_conflict_each_time_and_new_once():
    ids = ClientIds()
    shown = [ids.check(presence) for presence in (online(1), online(2), gone(1), online(1), online(2), online(1))]

    assert shown == [None, None, None, Conflict(True, "shop/till"), None, Conflict(False, "shop/till")]


def test_reconnections_and_restarts_are_no_conflict():
    ids = ClientIds()

    assert [ids.check(each) for each in (online(1), gone(1), online(1), gone(1), online(2), gone(2), online(2))] == [
        None
    ] * 7


def test_clients_are_independent_and_may_leave_out_their_incarnation():
    ids = ClientIds()

    assert [
        ids.check(each) for each in (online(2, "u/a"), online(1, "u/b"), online(None, "u/a"), online(2, "u/a"))
    ] == [None] * 4


def test_only_so_many_clients_are_remembered(monkeypatch):
    monkeypatch.setattr(client_ids, "MAX_CLIENTS", 2)
    ids = ClientIds()
    shown = [
        ids.check(online(*each)) for each in [(2, "u/0"), (1, "u/0"), (2, "u/1"), (2, "u/2"), (1, "u/0"), (2, "u/0")]
    ]

    assert [None, Conflict(True, "u/0"), None, None, None, None] == shown, "it was forgotten"
    assert ids.check(online(1, "u/0")) == Conflict(True, "u/0"), "and so was its conflict"


def test_programs_of_two_users_with_one_client_id_disconnect_each_other_too():
    ids = ClientIds()
    ids.check(online(2, "rival/till"))

    assert ids.check(online(1, "shop/till")) == Conflict(True, "rival/till")
