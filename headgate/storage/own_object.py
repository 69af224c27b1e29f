"""Create an object once, and recognize it by its content when the store does not say that it has created it.

A store may lose its answer, and a bucket repeats a request whose answer was lost: it then finds its own object.
"""

from headgate.errors import (
    ForeignObjectError,
    NotDurableError,
    ObjectExistsError,
    ObjectMissingError,
    OutcomeUnknownError,
    StoreError,
)
from headgate.storage.object_store import Store


async def create_own(store: Store, path: str, data: bytes) -> None:
    """Create ``path``; return once it is durable. Raises what `Store.create` raises.

    If the store reports that the object exists, or cannot report the outcome, it is read. Equal bytes were written by
    this call, or are as good: ``data`` has a random id in it, or follows from the ledger. If no object is there, or it
    cannot be read, nothing is known: the request may still arrive.
    """
    try:
        await store.create(path, data)
    except NotDurableError:
        raise
    except (ObjectExistsError, OutcomeUnknownError) as error:
        try:
            stored = await store.read(path)
        except ObjectMissingError:
            raise error from None
        except ForeignObjectError as other:
            raise ObjectExistsError(str(other)) from error
        except StoreError as unread:
            raise OutcomeUnknownError(f"{error}; {unread}") from error
        if stored != data:
            raise ObjectExistsError(f"{path} exists, with other content") from error
        await store.make_durable(path.rpartition("/")[0])
