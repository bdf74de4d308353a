"""The four papers' tables and figures beside ours: `./run.sh papers`."""
