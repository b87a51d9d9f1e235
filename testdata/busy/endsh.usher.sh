# Pid.
pid() { echo $PPID; }

# Spins.
spin() { echo endsh spins >&2; while :; do :; done; }
