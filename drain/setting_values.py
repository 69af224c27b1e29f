"""What settings of the Spark process mean: its engine, settings of Spark, and its socket. Pure, no Spark.

``local[*]`` counts in the Spark process; ``spark://``, ``yarn``, ``k8s://`` on a cluster's
executors; ``sc://`` on a Spark Connect server. A daemon asks the process through a Unix socket.
"""

import hashlib
import re
import tempfile
from pathlib import Path
from typing import Final, Literal

from headgate.errors import ConfigError

Engine = Literal["local", "cluster", "connect"]

DEFAULT_MASTER: Final = "local[*]"
VALID_MASTERS: Final = "local[*], local[N], spark://host:port, yarn, k8s://https://host:port or sc://host:port"
_LOCAL: Final = re.compile(r"local(\[(\*|[1-9][0-9]*)(\s*,\s*[0-9]+)?\])?")
_HOST: Final = r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"
_CLUSTER: Final = re.compile(rf"spark://{_HOST}(,{_HOST})*|yarn|k8s://\S+")
_CONNECT: Final = re.compile(r"sc://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/(;[a-z_-]+=[^;\s]*)*)?")
_SECRET: Final = re.compile(r"secret|password|token|access\.key|account\.key|credential", re.IGNORECASE)
_LOOPBACK: Final = re.compile(r"(?:spark|sc)://(?:localhost|127\.[0-9.]+|\[::1\])(?::[0-9]+)?(?:/\S*)?")
SOCKET_PATH_BYTES: Final = 107


def engine_of(master: str) -> Engine:
    """Return the kind of engine that ``master`` names.

    Raises ConfigError: it names none, or contains a token, which logs and the process list would show.
    """
    if ";token=" in master:
        raise ConfigError(
            "the Spark master contains a token: set the environment variable SPARK_CONNECT_AUTHENTICATE_TOKEN instead"
        )
    if _LOCAL.fullmatch(master):
        return "local"
    if _CLUSTER.fullmatch(master):
        return "cluster"
    if _CONNECT.fullmatch(master):
        return "connect"
    raise ConfigError(f"Spark master {master!r}: write one of {VALID_MASTERS}")


def conf_problem(name: str) -> str | None:
    """Return why ``name`` may not be set as a Spark setting, or None."""
    if not name.startswith("spark."):
        return f"{name!r} is not a setting of Spark: those begin with spark."
    if name in ("spark.master", "spark.remote"):
        return f"{name} follows from the master: set drain.master or --master"
    if _SECRET.search(name):
        return f"{name} would show in the process list: pass secrets to Spark's machines in their environment"
    return None


def conf_pair(text: str) -> tuple[str, str]:
    """Return the setting in ``KEY=VALUE``; raises ValueError for anything else, as argparse requires."""
    name, equals, value = text.partition("=")
    if not equals or conf_problem(name):
        raise ValueError(conf_problem(name) or f"{text!r} is not KEY=VALUE")
    return name, value


def is_on_this_machine(master: str) -> bool:
    """Return whether the engine runs on this machine, judging by its name, and so sees this machine's files."""
    return engine_of(master) == "local" or _LOOPBACK.fullmatch(master) is not None


def socket_path(text: str) -> Path:
    """Return the path of a socket; raises ConfigError if it cannot be one."""
    if text == "/" or not text.startswith("/"):
        raise ConfigError(f"{text!r} is no absolute path of a Unix socket; write for example /run/headgate/drain.sock")
    if (length := len(text.encode())) > SOCKET_PATH_BYTES:
        raise ConfigError(
            f"the path has {length} bytes, but the path of a socket may have {SOCKET_PATH_BYTES}; use a shorter path"
        )
    return Path(text)


def own_socket(folder: Path, *owner: str) -> Path:
    """Return the path of a socket that no other ``owner`` has, in ``folder`` unless its path is too long.

    ``owner``: what identifies the daemon.
    """
    digest = hashlib.sha256("\0".join((str(folder), *owner)).encode()).hexdigest()[:12]
    path = folder / f"drain-{digest}.sock"
    if len(str(path).encode()) <= SOCKET_PATH_BYTES:
        return path
    return Path(tempfile.gettempdir(), f"headgate-{digest}", "drain.sock")
