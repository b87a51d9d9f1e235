# Draws.
handleDraw() { echo '{"type":"image","data":"iVBORw0KGgo=","mimeType":"image/png"}'; }

# Gives a text.
text() { printf hi; }

# Gives blocks.
blocks() { echo '[ {"type":"image","data":"aGk=","mimeType":"image/png"}]'; }

# Takes one.
# @param {integer} a
one() { echo "$1"; }
