export function add(a, b) {}
export const fine = ({ a }) => a
export const greet = (name, times = 1) => name
/** @param {string} name */
export const hail = name => name
export const all = ({ a }, ...more) => a
export const one = p => [p, p]
