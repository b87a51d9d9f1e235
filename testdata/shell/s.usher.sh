#!/bin/bash
# Does as it is told.

# Gives its arguments back.
# @param {string} a first
# @param {object} [b] second
# @param {boolean} [c] third
args() { printf '[%s]' "$0" "$@" | sed "s|$PWD|.|"; }

# Gives its input back.
whole() { cat; }

# Fails.
fail() { seq 9 >&2; return 3; }

# Fails without a word.
mute() { return 4; }

# Gives an object.
object() { printf '{\n"a": 12345678901234567890\n}\n'; }

# Gives a result of MCP's own form.
result() { echo '{"content":[{"type":"image","data":"","mimeType":"image/png"}],"isError":false}'; }

# Names its file.
file() { echo 'BASH_SOURCE' "${BASH_SOURCE##*/}"; }

# Gives nothing.
nothing() { :; }

# Gives no UTF-8.
noise() { printf '\377\376{"jsonrpc":"2.0","id":1}'; }

# Floods.
flood() { head -c 100000000 /dev/zero | tr '\0' x; }

# Leaves a process behind, which keeps stdin open and does not listen.
forks() { trap '' TERM; sleep 999 <&0 & echo done; }

# Takes all memory, but for a limit.
hog() { ulimit -v 50000; x=xxxxxxxx; while :; do x=$x$x; done; }

# Does not listen.
stubborn() { trap '' TERM; sleep 1000 & while :; do sleep 1000; done; }

_hidden() { :; }
undocumented() { :; }
