#!/bin/sh

# Takes a contact form.
# @param {string} email where to answer
# @param {string} message what it is about
# @param {integer} [copies] how many to send
handleContact() {
	sent=$(sed -n 's/.*"timestamp":\([0-9]*\)[0-9]\{3\}[,}].*/\1/p')
	if [ -n "$sent" ] && [ $(($(date +%s) - sent)) -gt 60 ]; then
		echo "the request is too old" >&2
		return 1
	fi
	printf '{"copies":%d,"thanks":"%s"}\n' "${3:-1}" "$1"
}

# Takes a second.
pause() {
	sleep 1
	echo done
}
