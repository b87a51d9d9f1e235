// Plain functions, documented by their comments. This is not in the instructions.

const untold = 1 // not a comment of what follows
export function bare() {}

/**
 * Says hello.
 *
 * Two paragraphs,
 *   one indented.
 * @param {object} params - what goes in
 * @param {string} params.name who
 * @param {number} [params.times=1] how often
 * @readonly
 */
export async function greet(params) { return params }

// Takes things apart.
// eslint-disable-next-line no-unused-vars
export const apart = async ({
  email, // where to write to
  age = 3,
  'odd-key': odd,
  nested: { a, b } = {},
  /** one of many */
  tags,
  _webhook,
  ...rest
}) => rest

/**
 * Optional by its comment.
 * @param {string} a
 * @param {string} [b]
 */
export function optional({ a, b }) { return [a, b] }

/**
 * A type in the comment.
 * @param {{ email: string, tags?: string[] }} options all of it
 * @webhook some/path
 */
export function typed(options) { return options }

/* not documentation */
export function second(params) { return params }

/** far above */

export function alone(params) { return params }

/** Renamed. */
function inner({ x }) { return x }
export { inner as outer, later }
/** Declared after its export. */
function later(p) { return p }

export class NotHosted { method() {} }
export const value = { not: 'a function' }
export function _private() {}
export default function main(p) { return p }
