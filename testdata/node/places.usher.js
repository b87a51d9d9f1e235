// Functions that share their texts, and those that other functions made.

import { imported, same } from './places.mjs'

/** Gets p => p. */
export const get = p => p
/** Puts. */
export const put = p => p
/** Bound. */
export const bound = put.bind(null)
export { put as alias, imported, same }

const logged = method => async p => method(p)
/** Adds. */
export const add = logged(({ a, b }) => a + b)
/** Subtracts. */
export const sub = (f => f)(({ a, b = 1 }) => a - b)
/** Begins on the next line. */
export const later =
  async function ({ c }) { return c }

// Documents a function that the object below has.
function size({ of }) { return of.length }
export default {
  size, /** On one line. */ short: ({ d }) => d,
  /** The last. */
  async last(p) { return size(p) },
}
