'use strict'

// Written for CommonJS. Its own folder has no package.json.

const path = require('node:path')
const state = { calls: 0 }

/** Joins. */
function join({ parts }) { return parts.join(path.sep) }

module.exports = {
  join,
  /** Counts, with this. */
  async count() { return ++state.calls + this.offset },
  offset: 10,
  renamed: join,
  // An arrow.
  arrow: ({ a, b = 2 }) => [a, b],
  * steps(p) { yield p },
  get computed() { return 1 },
}
