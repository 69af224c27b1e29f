"""The reference of exit codes, from the enumeration that the command line uses."""

from headgate.cli.exit_codes import ExitCode
from sitebuild.attribute_docs import attribute_docs
from sitebuild.settings_reference import UndocumentedError


def exit_code_reference() -> str:
    """Return the exit codes of commands as a Markdown table."""
    docs = attribute_docs(ExitCode)
    if undocumented := [code.name for code in ExitCode if code.name not in docs]:
        raise UndocumentedError(f"exit codes without a text: {', '.join(undocumented)}")
    rows = [f"| {code.value} | {' '.join(docs[code.name].split())} |".replace("``| ", r"``\| ") for code in ExitCode]
    return "\n".join(["| code | meaning |", "|---|---|", *rows])
