export function add(a, b) {}
export const fine = ({ a }) => a
/** @param name */
export const greet = (name, times = 1) => name
/** @param {string} name */
export const hail = name => name
export const all = ({ a }, ...more) => a
export const one = p => [p, p]
/**
 * @param {number} first
 * @param {object} opts
 * @param {number} opts.a
 * @param {number} [second]
 * @param {...number} more
 */

export function mixed(first, { a }, second = 7, ...more) { return [first, a, second, ...more] }
/**
 * @param {string} wh
 * @param {number} [times]
 */
export const stale = (who, times) => who
/**
 * @param {String[]} names
 * @param {Function} then
 */
export const listed = (names, then) => names
/**
 * @param {string} a
 * @param {number} ...rest
 */
export const dotted = (a, ...rest) => [a, ...rest]
/**
 * @param {number} a
 * @param {number} b
 */
export const sum = async (a, b) => a + b
/** @param {string} name */
export const delivered = (_webhook, name) => [_webhook.method, name]
export class Box { put({ a }) { return a } }
export const group = { put({ a }) { return a } }
export const bound = sum.bind(null)
export const settings = { a: 1, b: [] }
/** @param value anything */
export const known = value => value
/** @param body the whole body */
export const handlePush = body => body
/**
 * @webhook
 * @param {any} body
 */
export const push = body => body
