"""The four papers' tables and figures next to ours: `./run.sh papers`."""
