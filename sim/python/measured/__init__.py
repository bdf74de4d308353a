"""Real steps with known document lengths, held against the simulator: `python3 -m measured`."""
