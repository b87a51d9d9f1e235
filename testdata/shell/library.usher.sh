#!/bin/bash
# shellcheck shell=bash
###########################
# =========================
# Shows how libraries of functions look.
#==========================

# @description Says hello
#   to somebody.
# @example
#    say_hello Bob 1
# @arg {string} name The name.
# @arg {integer} times How often.
# @exitcode 0 Always.
# @stdout The greeting.
say_hello() { printf '[%s]' "$@"; }

#######################################
# Removes old files.
# Arguments:
#   None
#######################################
# shellcheck disable=SC2034
function clean ( ) {
	echo cleaned
}

# Has a name that MCP does not allow.
a::b() { :; }

# Runs in a shell of its own.
own() ( echo own )

# Prints a picture.
picture() { printf '\x89PNG\r\n\x1a\n'; }

# Prints what is no UTF-8.
latin() { printf 'caf\xe9'; }
