"""Requests of operators about daemons and shards: which daemon leads what."""

from headgate.protocol.request_fields import Name, RequestBody, Token


class TransferShard(RequestBody, frozen=True, tag="transfer_shard"):
    """Transfer the shard to a daemon, which has read its ledger before the present leader stops.

    The reply ``done`` is that of the new leader: the old one does not reply if the transfer succeeds. The envelope
    must have a ``leader_epoch``: a transfer ends the term that it is for, so a late copy transfers nothing.
    """

    daemon: Name
    token: Token


class SetMaintenance(RequestBody, frozen=True, tag="set_maintenance"):
    """Begin or end the maintenance of a daemon. Any leader stores it, whatever its shard."""

    daemon: Name
    on: bool
    token: Token
