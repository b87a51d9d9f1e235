# Writes a file.
# @param {string} path where
# @param {string} text what
# @param {string} [mode] as chmod has it
put() { printf '%s' "$2" >"$1" && chmod "${3:-644}" "$1"; }

# Writes a file, and sets its time back.
# @param {string} path where
# @param {string} text what
# @param {string} [mode] is ignored
back() { touch -r "$1" time && printf '%s' "$2" >"$1" && touch -r time "$1"; }
