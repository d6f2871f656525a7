"""`python -m interlock` is `interlock`."""

from interlock.cli.main import main

main()
