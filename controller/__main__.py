"""`python -m controller` is `headgate`."""

from controller.cli import main

main(prog_name="headgate")
