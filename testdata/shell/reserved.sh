
# Runs it.
# @param {string} text what
function time() { printf '%s' "$1"; }
# Says it.
function say-so {
:
}
