#!/bin/bash
# shellcheck shell=bash
###########################
# =========================
# Shows how libraries of functions look.
#==========================

# @description Says hello
#   to somebody.
# @example
#    say::hello Bob
# @arg $1 string The name.
# @arg $2 integer How often.
# @arg $3 path of a file
# @exitcode 0 Always.
# @stdout The greeting.
say::hello() { printf '[%s]' "$@"; }

#######################################
# Removes old files.
# Arguments:
#   None
#######################################
# shellcheck disable=SC2034
function files.clean ( ) {
	echo cleaned
}

# Has a comment that a blank line follows.
# @param {string} text the text

spaced() { echo "$1"; }

# Has a name that another function has too.
a.b() { :; }

# Has the same one.
a::b() { :; }

# Runs in a shell of its own.
own() ( echo own )

# Counts its argument.
count() {
	echo "${#1}"
}

# Drops its argument.
drop() (
	shift
)

# Prints a picture.
picture() { printf '\x89PNG\r\n\x1a\n'; }

# Prints what is no UTF-8.
latin() { printf 'caf\xe9'; }
