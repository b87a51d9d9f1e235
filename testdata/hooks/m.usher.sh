# Takes it.
handleIt() { cat; }

# Takes it too.
#
# @webhook any/path
other() { printf '{"_response":{"status":201,"body":"POST"}}'; }

# @signature github WH_KEY_SIGNING_SECRET
handleSigned() { printf 1; }

# Fails.
handleFail() { echo 'no more' >&2; return 3; }
