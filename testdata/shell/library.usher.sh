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

# @description Joins two texts.
# @arg $1 string The first text.
# @arg $2 string The second one.
text::join.all() { printf '%s-%s' "$1" "$2"; }

# Has the name of the next one.
a::b() { :; }

# Has the name of the last one.
a.b() { :; }

# Is apart.
# @param {string} word a word

function apart
{
	echo "apart $1"
}

# Was a function.
# @param {string} gone a word
# gone() {

# Gets nothing.
bare() { echo "$#"; }

# Belongs to nothing.

without_comment() { :; }

# Runs in a shell of its own.
own() ( echo own )

# Prints a picture.
picture() { printf '\x89PNG\r\n\x1a\n'; }

# Prints what is no UTF-8.
latin() { printf 'caf\xe9'; }

# Uses an argument that it does not describe.
undescribed() {
	local name=$1
}

# Counts its arguments, and the items of a list.
counts() { echo "$#" "${#list[@]}"; }

# Says nothing.
silent() { :; }
without_comment_too() { echo "$1"; }

# Uses an argument below an empty line.
below()
{
	local name

	name=$1
}

# Prints the second argument.
second() { echo "${2:-}"; }

# Counts the items of a list.
length() { echo "${#list[@]}"; }

# Prints the first column.
column() { awk '{ print $1 }'; }

main() {
	echo "main ran"
	exit 3
}

# A library runs main only as a command.
[[ ${BASH_SOURCE[0]} == "$0" ]] && main "$@"

# Prints the number of a character.
code() { printf '%d' "'$1"; }

# Says that it is there.
there() { echo "it's $1"; }
