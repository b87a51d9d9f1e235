#!/bin/sh
# Shows what changed in the Git repository that contains this folder.

# Lists the latest commits, one per line.
#
# @readonly
# @param {integer} [count=5] number of commits
recent() {
	git log -n "${1:-5}" --date=short --format='%h %ad %an: %s'
}

# Counts an author's commits and finds the date of the latest one.
#
# @readonly
# @param {string} name part of the author's name or email address
author() {
	commits=$(git rev-list --count --author="$1" HEAD) || return
	last=$(git log -n 1 --author="$1" --date=short --format=%ad) || return
	printf '{"commits":%d,"last":"%s"}\n' "$commits" "$last"
}
