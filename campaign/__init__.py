"""The campaign behind `make prove`: long runs that try to break the promises of Interlock, with a report at the end."""
