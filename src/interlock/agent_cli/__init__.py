"""Jobs that run an agent CLI: `interlock agent run`."""
