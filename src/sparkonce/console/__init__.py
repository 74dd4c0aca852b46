"""The command line: `sparkonce`, one file a command."""
