"""`python -m headgate` is `headgate`."""

from headgate.cli.main import main

main(prog_name="headgate")
