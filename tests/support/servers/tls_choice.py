"""Which files of system tests run with TLS, users and passwords (``--tls``)."""

from typing import Final

CHOICES: Final = ("half", "all", "none")
WITH_TLS: Final = frozenset(
    {
        "test_access.py",
        "test_bad_input.py",
        "test_devices.py",
        "test_documented_programs.py",
        "test_kinesis.py",
        "test_one_node.py",
        "test_sessions.py",
        "test_shared_subscription.py",
        "test_tutorial.py",
        "test_two_daemons.py",
    }
)
"""The half that uses TLS by default: all that share the node, and the others whose tests depend most on identities."""


def uses_tls(choice: str, file_name: str) -> bool:
    return choice == "all" or (choice == "half" and file_name in WITH_TLS)


def description(choice: str) -> str:
    """Return the line in the header of a run."""
    files = {"all": "all files", "none": "no file", "half": ", ".join(sorted(WITH_TLS))}[choice]
    return f"system tests with TLS: {files}"
