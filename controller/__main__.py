"""`python -m controller` is `headgate`."""

from controller.cli.main import main

main(prog_name="headgate")
