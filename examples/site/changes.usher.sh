#!/bin/sh
# Tells what changed in the Git repository that this folder lies in.

# Lists the last commits, one a line.
#
# @readonly
# @param {integer} [count=5] how many
recent() {
	git log -n "${1:-5}" --date=short --format='%h %ad %an: %s'
}

# Tells who committed how often, and when last.
#
# @readonly
# @param {string} name a part of the author's name or address
author() {
	commits=$(git rev-list --count --author="$1" HEAD) || return
	last=$(git log -n 1 --author="$1" --date=short --format=%ad) || return
	printf '{"commits":%d,"last":"%s"}\n' "$commits" "$last"
}
