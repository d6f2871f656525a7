"""What runs tasks: claim, run, report."""
