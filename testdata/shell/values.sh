
# Says them.
# @param {string} a
# @param {string} b
values() { printf '[%s]' "$#" "$@"; }

"$@"
