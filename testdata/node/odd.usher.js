/*!
 * Code that is hard to take apart: no quote, bracket or comment here is one.
 */
const one = /["'`{(\[\/*]/g, two = 6 / 2 / 1, three = `a ${`b ${'}'} {`} // no comment`
const four = [1, 2][1] / 2, five = (1 + 2) / 3 // /* neither
if (one) /[}/'"]/.test('x')
let six = 1
six++ / 2
const seven = { a: 1 } / 2, eight = 'it\'s // \
still a string'
const nine = x => x / 2, ten = a => { return /}/.test(a) }
label: for (const i of []) { /* { */ }
const \u0061bc = 1, $ = 2, _ = 3, größe = 4
export function* generator({ a /* of a */, b = { c: [1, 2] }, d = () => { return { e: 1 } }, f }) { yield a }
export const after = async function named({ x = `}${'`'}` }) { return x }
export const curried = (p) => (q) => p
export const template = ({ t }) => `${t}`
export async function größer({ ü }) { return ü }
/** @param {string} constructor a name that objects have already */
export function inherited({ constructor, toString = 1, __proto__: p }) { return [constructor, toString, p] }
